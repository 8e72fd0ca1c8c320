"""The page on the theory against the code: its example, its figures, its sections and the tests that it cites."""

import re
from pathlib import Path

from digrad import graphs, problems
from digrad.network import Network
from digrad.theory import check_run
from digrad.theory.certificates.certificate import REFERENCES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/theory.md").read_text(encoding="utf-8")


def test_example_of_the_page_runs_and_has_the_printed_figures(capsys):
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    names = {}
    exec(compile(block, "docs/theory.md", "exec"), names)
    assert capsys.readouterr().out.startswith("holds: alpha = ")
    certificate, check = names["certificate"], names["check"]
    assert check.verdict == "PASS"
    assert 0 < check.proven_from < 500
    assert f"Every step up to {certificate.alpha_max:.2g} is certified" in flat(PAGE)


def test_sections_that_the_code_cites_are_on_the_page():
    folders = (ROOT / "src/digrad/theory", ROOT / "tests/theory")
    files = [
        path
        for folder in folders
        for path in folder.rglob("*.py")
        if "docs/theory.md" in path.read_text("utf-8")
    ]
    sources = [path.read_text(encoding="utf-8") for path in files if path != Path(__file__)]
    cited = set(re.findall(r"sections? (\d(?:\.\d)?)", "\n".join([*sources, *REFERENCES])))
    headings = set(re.findall(r"^#{2,3} (\d(?:\.\d)?)", PAGE, re.MULTILINE))
    assert {"1", "3", "4"} <= cited
    assert cited <= headings


def test_tests_that_the_page_cites_exist():
    written = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    cited = set(re.findall(r"`(test_[a-z0-9_]+)`", PAGE))
    assert len(cited) > 10
    assert [name for name in cited if f"def {name}(" not in written] == []


def test_rows_of_a_run_are_in_the_table_of_the_page():
    check = check_run(
        problems.example_quadratic(),
        Network(graphs.example5()),
        step_size=0.01,
        threshold=5.0,
        steps=3,
        paper=True,
    )
    table = PAGE[PAGE.index("## 3. ") : PAGE.index("## 4. ")]
    short = {re.split(r"[:,( <=]", row.name)[0] for row in check.rows}
    assert {name for name in short if name not in table} == set()


def flat(text):
    """Return the text without line breaks."""
    return " ".join(text.split())
