"""``report.html``: what a run or a reproduction found, on one page that needs nothing else."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from digrad.algorithms.catalog import method_facts, section
from digrad.algorithms.registry import ALL_METHODS
from digrad.errors import DataError
from digrad.experiments.reproduce import MARKER
from digrad.experiments.spec import Spec
from digrad.experiments.store import TIMES, RunDirectory, find_run, read_json
from digrad.files import write_atomically
from digrad.plots import byte_unit
from digrad.report.page import badge, image, page, preformatted, table, text

_CAPTIONS = {
    "explosion": "A method that explodes and one that does not, from the same start, each on its own axis.",
    "loss_and_gradient": "Loss and gradient norm of the whole problem at the average of the agents.",
    "consensus": "How far the agents are from their average, and how many of them clip.",
    "graph": "Who hears whom: arrows point from sender to receiver.",
    "gradient_tracking_explodes": "Plain gradient tracking against CGT from one start (the paper's first figure).",
    "cgt_against_clipped_dgd": "CGT against DGD with clipped gradients (the paper's second figure).",
    "accuracy": "Training and test accuracy of the average of the agents.",
    "cifar-explosion": "Where clipping matters: CGT and AB from a start of larger weights.",
    "cifar-thresholds-clipping": "The largest tracker since the row before, and how often agents clipped.",
    "bias_without_sampling_noise": "The same with all samples: what remains is the bias.",
}
_SETTINGS = {
    "cifar-iid": "Accuracy of the average model, images divided at random (the paper's two figures of Section V-B).",
    "cifar-dirichlet": "The same, each kind of image divided by Dirichlet(0.1).",
    "cifar-sorted": "The same, each agent with two kinds of images.",
    "cifar-row": "Dirichlet(0.1), methods of one matrix mixing with R.",
    "cifar-thresholds": "CGT with other thresholds.",
}
_LOOKS = {"converged": "good", "diverged": "bad", "running": "open"}


def write_report(directory: str | os.PathLike[str]) -> Path:
    """Write ``report.html`` for a run directory, or for a reproduction with its claims.

    Only stored files are read. The page holds no time and no duration, so equal results give the same bytes.

    Args:
        directory: What ``digrad run``, ``demo`` or ``reproduce`` wrote.

    Returns:
        The path of the page.

    Raises:
        DataError: The directory is neither, or a file of it is missing or damaged.
    """
    folder = Path(directory)
    content = _reproduction_page(folder) if (folder / MARKER).is_file() else _run_page(find_run(folder))
    return write_atomically(folder / "report.html", content)


def _run_page(run: RunDirectory) -> str:
    run.results()  # a report of files that are damaged would look like a report of good ones
    spec = run.spec
    sections = [
        ("How each method ended", _verdict_table(run.summary, spec)),
        ("Figures", _run_figures(run.figures)),
        ("Methods", _methods(spec)),
        ("Specification", preformatted(spec.to_toml())),
        ("Environment", _environment(run.environment)),
    ]
    return page(spec.name, _subtitle(spec), sections)


def _subtitle(spec: Spec) -> str:
    batch = "all samples" if spec.batch_size is None else f"batches of {spec.batch_size}"
    seeds = f"seed {spec.seed}" if spec.seeds == 1 else f"medians over {spec.seeds} seeds from {spec.seed} on"
    return f"{spec.steps} steps, {batch}, {seeds}, {spec.dtype}; made by digrad."


def _verdict_table(summary: Mapping[str, Any], spec: Spec) -> str:
    head = ("method", "verdict", "steps", "loss", "gradient norm", "consensus error", "sent")
    rows = [
        (
            text(spec.label_of(label)),
            badge(_verdict(entry), _LOOKS.get(entry["verdict"], "open")),
            text(entry["steps"]),
            *(_number(entry["final"][metric]) for metric in ("loss", "grad_norm", "consensus_error")),
            _bytes(entry["bytes_sent"]),
        )
        for label, entry in summary.items()
    ]
    note = (
        '<p class="faint">At the last iteration. Converged: gradient norm and consensus error are within the '
        "tolerance of the specification; diverged: an entry is not finite or beyond 10<sup>12</sup> times the "
        "start; running: neither. Times are in <code>summary.json</code>.</p>"
    )
    return table(head, rows, numbers=range(2, len(head))) + note


def _verdict(entry: Mapping[str, Any]) -> str:
    at = f" at k = {entry['diverged_at']}" if entry["diverged_at"] is not None else ""
    return entry["verdict"] + at


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _bytes(count: int) -> str:
    divisor, unit = byte_unit(count)
    return f"{count / divisor:.3g} {unit}"


def _run_figures(folder: Path) -> str:
    optional = tuple(name for name in ("explosion", "accuracy") if (folder / f"{name}.png").is_file())
    return _figures(folder, (*optional, "loss_and_gradient", "consensus", "graph"))


def _figures(folder: Path, names: tuple[str, ...]) -> str:
    paths = {name: folder / f"{name}.png" for name in names}
    missing = [path for path in paths.values() if not path.is_file()]
    if missing:
        raise DataError(f"{missing[0]} is missing; run it again, or with --resume to draw only the figures.")
    return "\n".join(image(path, _caption(name), is_narrow=name == "graph") for name, path in paths.items())


def _caption(name: str) -> str:
    setting, _, axis = name.partition("-by-")
    return _CAPTIONS[name] if name in _CAPTIONS else f"{_SETTINGS.get(setting, setting)} Drawn over: {axis}."


def _methods(spec: Spec) -> str:
    parts = []
    for label, entry in spec.methods.items():
        fields = ", ".join(f"{name} = {json.dumps(value)}" for name, value in entry.fields.items())
        name = "" if label == entry.method else f" ({text(entry.method)})"
        parts.append(f"<h3>{text(label)}{name}</h3>\n<p>{text(method_facts([entry.method])[0].summary)}</p>")
        parts.append(f"<p><code>{text(fields)}</code></p>")
        parts.append(_reference(entry.method))
    return "\n".join(parts)


def _reference(method: str) -> str:
    return f'<p class="faint reference">{text(section(ALL_METHODS[method], "Reference"))}</p>'


def _environment(environment: Mapping[str, Any]) -> str:
    facts = {key: value for key, value in environment.items() if key not in (*TIMES, "versions")}
    facts |= environment.get("versions", {})
    return table(("what", "value"), [(text(key), text(value)) for key, value in facts.items()])


def _reproduction_page(folder: Path) -> str:
    if not (folder / "claims.json").is_file():
        raise DataError(f"{folder} holds a reproduction without claims yet; finish it with --resume.")
    claims, identity = read_json(folder / "claims.json"), read_json(folder / MARKER)
    figures: tuple[str, ...] = tuple(path.stem for path in sorted((folder / "figures").glob("cifar-*.png")))
    if identity.get("experiment") != "cifar":
        figures = ("gradient_tracking_explodes", "cgt_against_clipped_dgd", "bias_without_sampling_noise")
    sections = [
        ("Which claims hold", _verdicts(claims)),
        ("Figures", _figures(folder / "figures", figures)),
        ("What was measured", _claims(claims)),
        ("When a claim counts as holding", _rules(claims)),
        ("What the paper leaves open, and what was chosen", _choices(claims)),
        ("Methods", _references(folder, claims)),
    ]
    subtitle = f"Preset {identity['preset']}, seed {identity['seed']}; made by digrad."
    return page(claims["title"], subtitle, sections)


def _judgement(holds: str) -> str:
    short, _, rest = holds.partition(" for ") if holds.startswith("holds only") else (holds, "", "")
    look = {"holds": "good", "does not hold": "bad"}.get(short, "open")
    return badge(short, look) + (f" for {text(rest)}" if rest else "")


def _verdicts(claims: Mapping[str, Any]) -> str:
    rows = [
        (f"({entry['number']}) {text(entry['claim'])}", _judgement(entry["holds"]))
        for entry in claims["verdicts"]
    ]
    return table(("claim", "holds?"), rows)


def _claims(claims: Mapping[str, Any]) -> str:
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


def _rules(claims: Mapping[str, Any]) -> str:
    rules = {entry["number"]: entry["rule"] for entry in claims["claims"]}
    return table(("claim", "rule"), [(f"({number})", text(rule)) for number, rule in rules.items()])


def _choices(claims: Mapping[str, Any]) -> str:
    return table(
        ("what", "choice"), [(text(name), text(choice)) for name, choice in claims["choices"].items()]
    )


def _references(folder: Path, claims: Mapping[str, Any]) -> str:
    """Return where each method of the runs behind the claims was published."""
    runs = dict.fromkeys(entry["run"] for entry in claims["claims"])
    used = dict.fromkeys(
        entry.method for run in runs for entry in find_run(folder / run).spec.methods.values()
    )
    return "\n".join(f"<h3>{text(method)}</h3>\n{_reference(method)}" for method in used)
