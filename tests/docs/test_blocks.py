"""Every block of code in the documentation runs as printed; its commands in test_commands.py."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from docs_pages import DOCS, ROOT, blocks, pages, titled

pytestmark = pytest.mark.long

# Pages whose blocks need processes, or files of a package: what runs them is named.
ELSEWHERE = {
    "guides/training.md": "tests/torch/test_pages.py",
    "guides/slow_links.md": "tests/torch/test_pages.py",
    "guides/failures.md": "tests/torch/test_pages.py",
    "guides/machines.md": "tests/torch/test_pages.py",
    "guides/other_tools.md": "tests/torch/test_pages.py",
    "guides/method.md": "tests/docs/test_own_method.py",
    "guides/report.md": "tests/docs/test_report.py",
    "guides/step_size.md": "tests/docs/test_choosing.py",
    "guides/sweeps.md": "tests/docs/test_choosing.py",
    "theory.md": "tests/theory/test_page.py",
}


@pytest.mark.parametrize(
    "page", [page for page in pages() if blocks(page, "python") and page not in ELSEWHERE]
)
def test_python_blocks_of_a_page_run_in_turn(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for block in blocks(page, "python"):
        if block.startswith("# train.py"):  # of one process per agent: tests/torch/test_pages.py
            continue
        exec(compile(block, str(DOCS / page), "exec"), names)
        named = re.findall(r'"([\w./-]+\.(?:png|pdf|svg|html|csv|tex))"', block)
        assert [name for name in named if not Path(name).is_file()] == []


def test_pages_that_are_run_elsewhere_are_named_there():
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(), f"{test} does not read {page}"


def test_every_block_is_in_a_language_that_is_tested():
    for page in pages():
        fences = re.findall(r"^```(?=\S)(.*)\n(?:.*\n)*?^```$", (DOCS / page).read_text(), re.MULTILINE)
        assert set(fences) <= {"python", "sh", "toml", "yaml", "math", "text"} | {
            fence for fence in fences if fence.startswith("{")
        }, page


def test_toml_blocks_are_toml():
    found = [tomllib.loads(block) for page in pages() for block in blocks(page, "toml")]
    assert found


def test_installation_of_the_tutorial_is_that_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    (options,) = re.findall(r"^INSTALL := .* install --no-compile (.*)$", makefile, re.MULTILINE)
    assert "$(INSTALL) -e .\n" in makefile
    assert f"install {options} -e ." in blocks("tutorial.md", "sh")[0]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_is_as_documented(shell):
    page = (DOCS / "reference" / "commands.md").read_text()
    assert f"_DIGRAD_COMPLETE={shell}_source digrad" in page
    done = completion(f"{shell}_source")
    assert "_digrad_completion" in done


def test_shell_completion_offers_commands():
    offered = completion("bash_complete", COMP_WORDS="digrad re", COMP_CWORD="1")
    assert offered.split() == ["plain,report", "plain,reproduce"]


def completion(instruction, **environment):
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'digrad'; from digrad.cli import main; main()"],
        env={"_DIGRAD_COMPLETE": instruction, "PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def test_blocks_with_a_title_are_known():
    assert set(titled("guides/machines.md")) == {"file: train.py", "file: train.sbatch", "file: digrad.yaml"}
