"""``report.html``: what runs, sweeps and reproductions found, on one page that needs nothing else."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from digrad._internal.files import make_folder, write_atomically
from digrad._internal.formatting import shown
from digrad.core.method_facts import bibtex_of, method_facts, section
from digrad.errors import DataError
from digrad.methods.registry import ALL_METHODS
from digrad.network import Network
from digrad.paper.claims import FAILS, HOLDS, PARTLY, SEPARATOR
from digrad.problems import Problem
from digrad.report.model import model_of
from digrad.report.page import badge, image, once_each, page, preformatted, table, text
from digrad.report.result_folders import Source, read_sources, with_names
from digrad.report.results_table import results_table
from digrad.report.runs import Run, run_in_memory
from digrad.report.slowest import slowest_section
from digrad.specs.run_directory import TIMES
from digrad.trace import Ensemble, Trace

MOST_SWEPT = 1000  # rows of a sweep that a page shows
_CURVES = (
    '<div id="controls" class="controls"></div>\n<div id="legend"></div>\n<div id="curves"></div>\n'
    '<p id="remark" class="faint"></p>\n'
    '<p class="faint script-only">Drag across a figure to look closer, double-click to see all of it again; on the '
    "keyboard + and −, and arrows to read. Medians, with a band from the smallest to the largest value where there are "
    "several seeds; a cross where a method diverged. Every recorded row is in the <code>trace-*.parquet</code> files "
    "beside this page. Seconds are those of the whole run, divided evenly among its steps.</p>\n"
    "<noscript><p>The curves need JavaScript; without it, see the folder <code>figures</code>.</p></noscript>"
)


def write_report(
    results: str | os.PathLike[str] | Trace | Ensemble | Mapping[str, Trace | Ensemble],
    *others: str | os.PathLike[str],
    problem: Problem | None = None,
    network: Network | None = None,
    out: str | os.PathLike[str] | None = None,
) -> Path:
    """Write one page about runs, a sweep or a reproduction, or about several of them together.

    Of stored results only files are read, and the same files give the same bytes. Of two runs of one specification the
    pages differ in nothing but the durations.

    Args:
        results: What :func:`digrad.simulate` or :func:`digrad.compare` returned; or a folder that ``digrad run``,
            ``demo`` or ``reproduce`` wrote, or a folder of such folders.
        *others: More folders, to compare; certificates of ``digrad certify`` may be among them.
        problem: The problem of runs in memory, for its minimum and the labels of its agents.
        network: The network of runs in memory, which the page draws.
        out: The file to write; by default ``report.html`` in the folder, or here if there are several or none.

    Returns:
        The path of the page.

    Raises:
        DataError: A folder is none of these, or a file of it is missing or damaged.
        ArgumentError: ``results`` is neither.
    """
    if isinstance(results, str | os.PathLike):
        sources = read_sources([results, *others])
        folder = Path() if others else Path(results)
    else:
        run, folder = run_in_memory(results, problem, network), Path()
        sources = [Source(run.path, (run,)), *(read_sources(others) if others else ())]
    path = Path(out) if out is not None else folder / "report.html"
    content = _page(with_names(sources))
    make_folder(path.parent)
    return write_atomically(path, content)


def _page(sources: Sequence[Source]) -> str:
    runs = [run for source in sources for run in source.runs]
    data, times = model_of(runs)
    claims = [part for source in sources if source.claims for part in _claim_sections(source, source.claims)]
    swept = [(f"{source.title} in {source.name}", _swept(source)) for source in sources if source.swept]
    about_runs = [
        ("Results", results_table(runs, data)),
        ("Curves", _CURVES),
        *([("Stragglers and slow edges", slowest)] if (slowest := slowest_section(data)) else ()),
        *_optional_sections(data),
    ]
    specified = [run for run in runs if run.toml]
    again = [
        ("Reproduce", _commands(sources)),
        ("Specification" if len(specified) == 1 else "Specifications", _specifications(specified)),
    ]
    known = [method for method in _methods_used(runs) if method in ALL_METHODS]
    setting_of_runs = [
        ("Methods", _methods(runs)),
        *(again if specified else ()),
        ("Environment", once_each((run.folder, _environment(run.environment)) for run in runs)),
        *([("BibTeX", preformatted(bibtex_of(known), "bibtex"))] if known else ()),
    ]
    sections = [
        *claims,
        *(about_runs if runs else ()),
        *swept,
        *_certificates(sources),
        *(setting_of_runs if runs else ()),
    ]
    return page(_title(sources), _subtitle(sources), sections, data=data, times=times)


def _title(sources: Sequence[Source]) -> str:
    if len(sources) > 1:
        names = [source.name for source in sources if source.runs or source.swept]
        return f"Comparison of {', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    source = sources[0]
    if source.claims:
        return source.claims["title"]
    if source.swept:
        return f"{source.title} in {source.name}"
    return source.runs[0].name if len(source.runs) == 1 else f"The runs in {source.name}"


def _subtitle(sources: Sequence[Source]) -> str:
    runs = [run for source in sources for run in source.runs]
    if len(sources) == 1 and sources[0].identity:
        return f"Preset {sources[0].identity['preset']}, seed {sources[0].identity['seed']}; made by digrad."
    if len(runs) != 1:
        rows = sum(len(source.swept) for source in sources)
        counts = [f"{len(runs)} runs"] * bool(runs) + [f"{rows} rows of tables"] * bool(rows)
        return f"{', '.join(counts)}; made by digrad."
    return f"{runs[0].about}; made by digrad."


def _swept(source: Source) -> str:
    """Return the table of a sweep, which the script sorts, and its figures."""
    columns = list(dict.fromkeys(name for row in source.swept for name in row))
    kinds = {
        name: all(isinstance(row.get(name), int | float | None) for row in source.swept) for name in columns
    }
    rows = [[text(shown(row.get(name), 6)) for name in columns] for row in source.swept[:MOST_SWEPT]]
    numbers = [place for place, name in enumerate(columns) if kinds[name]]
    content = table(columns, rows, numbers=numbers).replace("<table>", '<table class="sortable">', 1)
    left = len(source.swept) - len(rows)
    rest = f'<p class="faint">{left} more rows are in <code>table.parquet</code>.</p>' if left else ""
    pictures = [*(source.folder / "figures").glob("*.png"), *source.folder.glob("*.png")]
    figures = [image(path, path.stem.replace("_", " ")) for path in sorted(pictures)]
    spec = source.folder / "spec.toml"
    again = [_sweep_spec(source.name, spec.read_text(encoding="utf-8"))] if spec.is_file() else []
    return "\n".join([content, rest, *figures, *again])


def _sweep_spec(name: str, content: str) -> str:
    command = f"digrad sweep spec.toml --out {name}"
    body = preformatted(content, f"spec-of-{name}", file="spec.toml")
    return f"<details><summary>Reproduce: <code>{text(command)}</code></summary>\n{body}</details>"


def _optional_sections(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the homes of what the script draws only if it was recorded."""
    homes = {
        "plane": ("Paths of the agents", "planes"),
        "labels": ("The data of the agents", "labels"),
        "network": ("Communication graph", "networks"),
    }
    return [
        (title, f'<div id="{home}"></div>{_network_figures(data) if key == "network" else ""}')
        for key, (title, home) in homes.items()
        if any(run[key] for run in data["runs"])
    ]


def _network_figures(data: Mapping[str, Any]) -> str:
    described = [
        (run["folder"], f"<pre>{text(run['network']['figures'])}</pre>")
        for run in data["runs"]
        if run["network"] and run["network"]["figures"]
    ]
    if not described:
        return ""
    return f"\n<details><summary>Figures of the network</summary>\n{once_each(described)}\n</details>"


def _methods_used(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(method for run in runs for method, _ in run.methods.values()))


def _methods(runs: Sequence[Run]) -> str:
    parts = []
    for method in _methods_used(runs):
        known = ALL_METHODS.get(method)  # not one that the user has just written
        parts.append(f"<h3>{text(method)}</h3>")
        parts += [f"<p>{text(method_facts([method])[0].summary)}</p>"] if known else []
        parts += [f"<p>{line}</p>" for line in _settings(runs, method)]
        parts += [f'<p class="faint reference">{text(section(known, "Reference"))}</p>'] if known else []
    return "\n".join(parts)


def _settings(runs: Sequence[Run], method: str) -> list[str]:
    """Return the hyper-parameters of each use of a method, each setting once."""
    lines: dict[str, list[str]] = {}
    for run in runs:
        for label, (used, values) in run.methods.items():
            if used == method:
                fields = ", ".join(f"{name} = {json.dumps(value)}" for name, value in values.items())
                lines.setdefault(fields, []).append(label)
    return [
        f"<code>{text(fields)}</code>"
        + ("" if set(labels) == {method} else f" as {text(', '.join(dict.fromkeys(labels)))}")
        for fields, labels in lines.items()
    ]


def _commands(sources: Sequence[Source]) -> str:
    lines, versions = [], {}
    for source in sources:
        if source.identity:
            lines.append(_reproduce(source))
        else:
            lines += [f"digrad run spec.toml --out {run.folder}" for run in source.runs if run.toml]
        versions |= {run.environment.get("versions", {}).get("digrad"): None for run in source.runs}
    made_by = [f"# digrad {version}" for version in versions if version]
    return preformatted("\n".join([*made_by, *dict.fromkeys(lines)]), "command") + (
        '\n<p class="faint">with the specification below as <code>spec.toml</code>. The same versions on the same kind '
        "of machine give the same numbers, bit for bit.</p>"
    )


def _reproduce(source: Source) -> str:
    name, preset, seed = (source.identity.get(key) for key in ("experiment", "preset", "seed"))
    command = f"digrad reproduce {name or 'logistic'} --preset {preset} --seed {seed}"
    if name != "cifar":
        return command
    settings = (run.path.name.removeprefix("cifar-") for run in source.runs)
    return " ".join([command, *(f"--setting {setting}" for setting in settings)])


def _specifications(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return preformatted(runs[0].toml or "", "spec", file="spec.toml")
    return "\n".join(
        f"<details><summary>{text(f'{run.folder}: {run.name}')}</summary>\n"
        + preformatted(run.toml or "", f"spec-{number}", file="spec.toml")
        + "</details>"
        for number, run in enumerate(runs)
    )


def _environment(environment: Mapping[str, Any]) -> str:
    facts = {key: value for key, value in environment.items() if key not in (*TIMES, "versions")}
    facts |= environment.get("versions", {})
    return table(("what", "value"), [(text(key), text(value)) for key, value in facts.items()])


def _certificates(sources: Sequence[Source]) -> list[tuple[str, str]]:
    found = [certificate for source in sources for certificate in source.certificates]
    return [("Certificate", "\n".join(_certificate(entry) for entry in found))] if found else []


def _certificate(stored: Mapping[str, Any]) -> str:
    certificate = stored["certificate"]
    look = {"holds": "good", "fails": "bad"}.get(certificate["verdict"], "open")
    word = "not certified" if certificate["verdict"] == "fails" else certificate["verdict"]
    label = f" ({text(certificate['label'])})" if certificate["label"] else ""
    step_size, threshold = (shown(certificate[name], absent="none") for name in ("step_size", "threshold"))
    head = (
        f"<p>{badge(word, look)} {text(stored['method'])} with step size {step_size} and "
        f"threshold {threshold}{label}</p>"
    )
    rows = [
        (text("largest certified step"), shown(certificate["alpha_max"], absent="none")),
        (
            text("largest stable step near the minimum (measured)"),
            shown(certificate["stable"], absent="none"),
        ),
        *(
            (text(f"steps until the gradient was {eps}, at most"), shown(k, absent="none"))
            for eps, k in certificate["K"].items()
        ),
    ]
    reasons = "".join(
        f"<p>{text(reason)}</p>" for reason in (*certificate["reasons"], stored["notice"]) if reason
    )
    return head + reasons + table(("what is proven", "value"), rows, numbers=(1,)) + _checked(stored)


def _checked(stored: Mapping[str, Any]) -> str:
    if stored["diverged_at"] is not None:
        return f"<p>The checked run diverged at k = {stored['diverged_at']}.</p>"
    check = stored["check"]
    if not check:
        return ""
    first = check.get("proven_from")
    proven = "" if first is None else f"<p>This run is proven to converge from step {text(first)} on.</p>"
    return f"{proven}<p>Checked along {text(check.get('steps', 'the'))} steps: {text(check.get('verdict', ''))}.</p>"


def _claim_sections(source: Source, claims: Mapping[str, Any]) -> list[tuple[str, str]]:
    rules = {entry["number"]: entry["rule"] for entry in claims["claims"]}
    return [
        ("Which claims hold", _verdicts(claims)),
        ("The paper's figures", _figures(source.folder / "figures", claims["figures"])),
        ("What was measured", _measured(claims)),
        (
            "When a claim counts as holding",
            table(("claim", "rule"), [(f"({number})", text(rule)) for number, rule in rules.items()]),
        ),
        (
            "What the paper leaves open, and what was chosen",
            table(
                ("what", "choice"), [(text(name), text(choice)) for name, choice in claims["choices"].items()]
            ),
        ),
    ]


def _figures(folder: Path, captions: Mapping[str, str]) -> str:
    paths = {folder / f"{name}.png": caption for name, caption in captions.items()}
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise DataError(f"{missing[0]} is missing; run it again, or with --resume to draw only the figures.")
    return "\n".join(image(path, caption) for path, caption in paths.items())


def _judgement(holds: str) -> str:
    if holds.startswith(PARTLY):
        where = "<br>".join(text(one) for one in holds.removeprefix(PARTLY).split(SEPARATOR))
        return f"{badge(PARTLY.strip(), 'open')} {where}"
    return badge(holds, {HOLDS: "good", FAILS: "bad"}.get(holds, "open"))


def _verdicts(claims: Mapping[str, Any]) -> str:
    rows = [
        (f"({entry['number']}) {text(entry['claim'])}", _judgement(entry["holds"]))
        for entry in claims["verdicts"]
    ]
    return table(("claim", "holds?"), rows)


def _measured(claims: Mapping[str, Any]) -> str:
    rows = [
        (
            f"({entry['number']})",
            f'<a href="{text(entry["run"])}/report.html">{text(entry["setting"])}</a>',
            text(entry["measured"]),
            _judgement(entry["holds"]),
        )
        for entry in claims["claims"]
    ]
    return table(("claim", "setting", "measured", "holds?"), rows)
