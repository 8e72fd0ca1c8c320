"""Write the generated pages of the documentation: `python docs/generate.py`.

reference/methods.md comes from what the method classes state about themselves, results/convergence.md from runs on the
example, reference/specs.md from the tables that validate a specification. `python docs/generate.py notebook` executes
examples/tour.ipynb again.
"""

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from digrad.core.method_facts import method_facts
from digrad.graphs.parse import NAMED
from digrad.methods import METHODS
from digrad.methods.references import NOT_OPENED
from digrad.schedules import SCHEDULES
from digrad.specs.graph_table import GraphTable, LinksTable, MixingTable
from digrad.specs.problem_table import LOSSES, ImagesTable, LogisticTable, LossTable, PartitionTable
from digrad.specs.spec import Spec
from digrad.specs.sweep_table import SweepTable
from digrad.testing.convergence import Outcome, convergence_table

HERE = Path(__file__).parent
NOTEBOOK = HERE.parent / "examples" / "tour.ipynb"

METHODS_HEAD = """# Methods

All methods of digrad in one table, and their classes with equations below; `digrad methods` prints the table.
`python docs/generate.py` writes this page from the classes.

- **needs:** the matrices it uses: row-stochastic R, column-stochastic C, doubly stochastic W. With `doubly or
  row`, the field `mixing` chooses between Sinkhorn's W (default) and R; with R alone the method minimises a
  loss weighted by the Perron vector of R.
- **vectors, numbers:** what a step sends along each edge, measured with the default hyper-parameters: vectors
  of d numbers, and further numbers (n: one per agent).
- **all-reduce:** vectors of d numbers that are averaged over all agents per step. A method that needs this
  `mean` is not decentralized.
- **rounds:** exchanges per step that depend on each other.
- **converges:** where it ends, [measured here](../results/convergence.md).
- **source:** "this library" and "after" mark methods that were not published in exactly this form; their
  docstrings list the deviations.

| method | needs | vectors | numbers | all-reduce | rounds | converges | decentralized | source |
|---|---|---|---|---|---|---|---|---|
"""

METHODS_TAIL = """
## Classes

```{eval-rst}
.. py:module:: digrad.methods

{% for kind, name in methods %}
.. {{ kind }}:: digrad.{{ name }}
{% endfor %}
.. autofunction:: digrad.methods.cgt.scaled_thresholds

.. autofunction:: digrad.methods.dnsgd.chebyshev_momentum
```

## Composition

{py:class}`digrad.Tracking` is composed of an estimator (`dg.estimators`) and a direction (`dg.directions`).

```{eval-rst}
.. automodule:: digrad.methods.estimators
   :members:

.. automodule:: digrad.methods.directions
   :members:
```

## What a method of your own may use

[How to write one](../guides/method.md).

{% for module in ("testing", "types", "methods.defaults", "arrays", "checks", "errors") %}
```{eval-rst}
.. automodule:: digrad.{{ module }}
   :members:
```
{% endfor %}
"""

CONVERGENCE_HEAD = """# What each method converges to

For anyone choosing a method: where each one ends on a small example, measured. `python docs/generate.py`
writes this page, and `digrad methods --measure` prints the same table.

The example has five agents, seven one-way edges, losses f_i(x) = x'diag(a_i)x/2 - b_i'x, and the minimum of
the average at (1/3, 1/3); all agents start at (10, -10). R is uniform row-stochastic, C uniform
column-stochastic, W doubly stochastic on the same edges (Sinkhorn), and M doubly stochastic on the
symmetrized graph (Metropolis), which uses edges that do not exist. Hyper-parameters not shown have their defaults. If
a run does not end within 1e-6 of the minimum, it is repeated with a tenth of the step size alpha and ten
times the steps.

| outcome | meaning |
|---|---|
| exact | every agent ends within 1e-6 of the minimum |
| biased | at rest, and the error shrinks with the step size |
| drifting | the error keeps growing: by more than 1 % when the run is four times as long |
| neighbourhood | still moving; the error shrinks with the step size, and its bound is shown |
| wrong point | the error does not vanish with the step size |

A method that is not decentralized uses the true average of all agents.

| method | matrices and hyper-parameters | steps | mean error | largest error | at alpha/10 | outcome | decentralized |
|---|---|---|---|---|---|---|---|
"""


SPECS_HEAD = """# The keys of a specification

All keys of a TOML file for `digrad run`, `sweep`, `tune` and `certify`; `digrad run --example` prints a file
to start from. Unknown keys are refused, and so are numbers written as strings. Relative paths are relative to
the file. `python docs/generate.py specs` writes this page from the code that validates a file.
"""


def specs_page() -> str:
    """Return specs.md."""
    tables: dict[str, Any] = {"At the top": Spec, "[graph]": GraphTable, "[mixing]": MixingTable}
    tables |= {"[links]": LinksTable}
    tables |= {
        '[problem] with kind = "logistic"': LogisticTable,
        '[problem] with kind = "images"': ImagesTable,
    }
    tables |= {f'[problem] with kind = "{kind}"': make for kind, make in LOSSES.items()}
    tables |= {"[problem] with a kind of your own": LossTable}
    tables |= {"[problem.partition]": PartitionTable, "[sweep]": SweepTable}
    lines = [*SPECS_HEAD.splitlines()]
    for title, table in tables.items():
        documented = {"kind": f'`"{table.__name__}"`.', **_arguments(table)}
        lines += ["", f"## {title}", "", "| key | default | what it is |", "|---|---|---|"]
        lines += [
            f"| `{key}` | {default} | {documented.get(key, '')} |"
            for key, default in _defaults(table).items()
        ]
    generators = [f"`{name}{inspect.signature(make)}`".split(" ->")[0] for name, make in NAMED.items()]
    lines += ["", "Generators: " + ", ".join(f"{text.rstrip('`')}`" for text in generators) + "."]
    lines += [
        "",
        "## [methods.LABEL]",
        "",
        "`method` is the name of a class, by default the label. The other keys are its",
    ]
    lines += [
        "fields ([methods.md](methods.md)): a number, a list with one number per agent, or a schedule such as"
    ]
    schedules = [
        f"`{name}` ({', '.join(inspect.signature(make).parameters)})" for name, make in SCHEDULES.items()
    ]
    lines += [f'`{{schedule = "inverse_sqrt", scale = 0.5}}`: {", ".join(schedules)}.']
    return "\n".join(lines) + "\n"


def _defaults(table: Any) -> dict[str, str]:
    """Return the keys of a table, or of a function whose arguments are the keys, with their defaults."""
    if inspect.isfunction(table):
        given = {name: one.default for name, one in inspect.signature(table).parameters.items()}
        return {"kind": "required"} | {
            name: "required" if value is inspect.Parameter.empty else _default(value)
            for name, value in given.items()
        }
    return {
        key: "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
        for key, field in table.model_fields.items()
    }


def _arguments(table: Any) -> dict[str, str]:
    """Return what the docstring of a table, or of a function, says about each key."""
    text = inspect.getdoc(table) or ""
    body = text.partition("Args:\n")[2]
    found = re.findall(r"^    (\w+): (.*(?:\n     +.*)*)", body, re.MULTILINE)
    return {key: _markdown(" ".join(said.split())).replace("``", "`") for key, said in found}


def _default(value: object) -> str:
    if value is None or value in (MixingTable(), LinksTable(), {}, []):
        return "none"
    return f'`"{value.scheme}"`' if isinstance(value, PartitionTable) else f"`{value!r}`".replace("'", '"')


def methods_page() -> str:
    """Return methods.md."""
    lines = [*METHODS_HEAD.splitlines()]
    for row in method_facts():
        lines.append("| " + " | ".join(map(str, row.cells())) + " |")
    unread = [name for name, method in METHODS.items() if getattr(method, "reference", None) in NOT_OPENED]
    lines += [
        "",
        f"The papers of {', '.join(unread)} were not consulted: these methods follow descriptions by other authors.",
    ]
    return "\n".join(lines) + "\n" + METHODS_TAIL


def convergence_page(table: list[Outcome]) -> str:
    """Return convergence.md."""
    lines = [*CONVERGENCE_HEAD.splitlines()]
    for row in table:
        lines.append("| " + " | ".join(map(str, row.cells())) + " |")
    return "\n".join(lines) + "\n"


def _markdown(text: str) -> str:
    text = re.sub(r":math:`(.*?)`", r"$\1$", text)
    text = re.sub(r":mod:`([\w.]+)`", r"`\1`", text)
    return re.sub(r":class:`~?(?:[\w.]*\.)?(\w+)`|:func:`~?([\w.]+)`", lambda m: f"`{m[1] or m[2]}`", text)


def executed_notebook() -> Any:
    """Return the notebook of the examples, executed."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, record_timing=False).execute()
    notebook.cells[1].outputs = []  # what pip prints depends on the machine
    return notebook


def main() -> None:
    """Write the pages that are asked for, or all but the notebook."""
    wanted = sys.argv[1:] or ["methods", "specs", "convergence"]
    if "notebook" in wanted:
        import nbformat

        nbformat.write(executed_notebook(), NOTEBOOK)
    if "specs" in wanted:
        (HERE / "reference" / "specs.md").write_text(specs_page())
    if "methods" in wanted:
        (HERE / "reference" / "methods.md").write_text(methods_page())
    if "convergence" in wanted:
        (HERE / "results" / "convergence.md").write_text(convergence_page(convergence_table()))


if __name__ == "__main__":
    main()
