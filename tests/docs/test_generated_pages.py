"""The generated pages of the documentation are in step with the code."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from digrad.testing import convergence

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_methods_page_is_what_the_classes_say(generate):
    assert (DOCS / "reference" / "methods.md").read_text() == generate.methods_page(), (
        "run `python docs/generate.py methods`"
    )


def test_the_specs_page_describes_every_key_of_the_tables(generate):
    page = (DOCS / "reference" / "specs.md").read_text()
    assert page == generate.specs_page(), "run `python docs/generate.py specs`"
    assert "Undefined" not in page
    assert not re.findall(r"^\| `\w+` \| [^|]* \|  \|$", page, re.MULTILINE), "a key has no description"


def test_the_convergence_page_measures_every_method(generate):
    page = (DOCS / "results" / "convergence.md").read_text()
    settings = [
        [type(method).__name__, convergence.setting(method, matrix), str(steps)]
        for method, matrix, steps in convergence.settings()
    ]
    assert page.startswith(generate.CONVERGENCE_HEAD), "run `python docs/generate.py convergence`"
    assert [row[:3] for row in _rows(page)] == settings, "run `python docs/generate.py convergence`"
    assert {row[0] for row in settings} == {method.__name__ for method in convergence.dg.METHODS.values()}


def test_the_notebook_prints_what_it_shows(generate, capsys):
    stored, names = json.loads(generate.NOTEBOOK.read_text()), {}
    for cell in stored["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(line for line in cell["source"] if not line.startswith("%")), names)
            assert capsys.readouterr().out == "".join(_printed([cell])), (
                "run `python docs/generate.py notebook`"
            )
    kinds = [
        set(output["data"])
        for cell in stored["cells"]
        for output in cell.get("outputs", ())
        if "data" in output
    ]
    assert sum("image/png" in kind for kind in kinds) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the libraries that run a kernel
def test_a_kernel_of_jupyter_prints_what_the_notebook_shows(generate):
    stored = json.loads(generate.NOTEBOOK.read_text())
    assert _printed(generate.executed_notebook()["cells"]) == _printed(stored["cells"])


def test_the_notebook_opens_in_colab_and_installs_in_one_line(generate):
    cells = ["".join(cell["source"]) for cell in json.loads(generate.NOTEBOOK.read_text())["cells"]]
    assert "colab.research.google.com/github/" in cells[0]
    assert [cell for cell in cells if "pip install" in cell] == ["%pip install --quiet digrad"]


def _printed(cells):
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    return ["".join(output["text"]) for output in outputs if output.get("name") == "stdout"]


# Each outcome and kind of matrix, and the exception below; the others are slow together.
CHEAP = [
    "CGT-R, C",
    "SGP-C",
    "DSGT-W",
    "DSGT-R",
    "DGDClip-W, threshold 1",
    "GD-mean",
    "NormalizedAB-R, C",
    "DAdaGrad-W",
]


def _label(method, matrix):
    small = ", threshold 1" if getattr(method, "threshold", None) == 1.0 else ""
    delayed = ", delayed" if getattr(method, "delayed", False) else ""
    return f"{type(method).__name__}-{matrix}{small}{delayed}"


ROWS = [
    pytest.param(place, id=label, marks=() if label in CHEAP else pytest.mark.slow)
    for place, label in enumerate(_label(*row[:2]) for row in convergence.settings())
]


@pytest.mark.parametrize("place", ROWS)
def test_a_method_ends_where_it_states_and_where_the_page_says(place, generate):
    method, matrix, steps = convergence.settings()[place]
    measured = convergence.measure(method, matrix, steps)
    # A threshold below the gradients at the minimum shifts the root of the clipped sum: the bias that DGDClip
    # states does then not vanish with the step size. Its docstring says so.
    declared = "wrong point" if _label(method, matrix) == "DGDClip-W, threshold 1" else _declared(method)
    assert measured.outcome == declared
    (printed,) = _rows(generate.convergence_page([measured]))
    on_page = _rows((DOCS / "results" / "convergence.md").read_text())[place]
    assert printed[:3] + printed[6:] == on_page[:3] + on_page[6:]
    for now, then in zip(printed[3:6], on_page[3:6], strict=True):
        # Two digits are printed: the last may differ by one with another rounding.
        assert now == then or float(now) == pytest.approx(float(then), rel=0.1)


def _declared(method):
    return "wrong point" if getattr(method, "mixing", None) == "row" else method.converges


def _rows(page):
    lines = page.split("|---|\n")[-1].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
