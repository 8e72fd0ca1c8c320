"""The generated pages of the documentation are in step with the code."""

import importlib.util
import re
from pathlib import Path

import pytest

from digrad.experiments import convergence

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_methods_page_is_what_the_classes_say(generate):
    assert (DOCS / "methods.md").read_text() == generate.methods_page(), (
        "run `python docs/generate.py methods`"
    )


def test_the_convergence_page_measures_every_method():
    rows = re.findall(r"^\| (\w+) \| (.*?) \| \d", (DOCS / "convergence.md").read_text(), re.MULTILINE)
    settings = [
        (type(method).__name__, f"{matrix}, {convergence._hyper(method)}")
        for method, matrix, _ in convergence.settings()
    ]
    assert rows == settings, "run `python docs/generate.py convergence`"
    assert {name for name, _ in rows} == set(convergence.dg.METHODS)


@pytest.mark.parametrize("row", [(0, "exact"), (13, "wrong point"), (14, "biased"), (5, "neighbourhood")])
def test_measured_outcomes_are_those_of_the_page(row, generate):
    place, outcome = row
    measured = convergence.measure(*convergence.settings()[place])
    line = generate.convergence_page([measured]).splitlines()[-1]
    assert measured.outcome == outcome
    assert (
        line.split("|")[-2]
        in (DOCS / "convergence.md").read_text().splitlines()[-len(convergence.settings()) + place]
    )


@pytest.mark.slow
def test_the_whole_convergence_page_is_what_is_measured(generate):
    assert (DOCS / "convergence.md").read_text() == generate.convergence_page(convergence.convergence_table())


def test_every_public_name_appears_in_the_documentation():
    import digrad

    pages = "\n".join(path.read_text() for path in [*DOCS.glob("*.md"), DOCS.parent / "README.md"])
    missing = [name for name in digrad.__all__ if not re.search(rf"\b{name}\b", pages)]
    assert not missing
