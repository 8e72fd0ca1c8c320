"""Every block of code in the documentation runs as printed, and every command is one that exists."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from digrad.cli.main import digrad
from docs_pages import DOCS, ROOT, blocks, pages, titled

# Pages whose blocks need processes, or files of a package: what runs them is named.
ELSEWHERE = {
    "torch.md": "tests/torch/test_pages.py",
    "howto/machines.md": "tests/torch/test_pages.py",
    "howto/trainers.md": "tests/torch/test_pages.py",
    "howto/own_method.md": "tests/docs/test_own_method.py",
    "report.md": "tests/docs/test_report.py",
    "choosing.md": "tests/docs/test_choosing.py",
    "sweeps.md": "tests/docs/test_choosing.py",
    "theory.md": "tests/theory/chains/test_reference_constants.py",
}
PROSE = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md")), *(DOCS / page for page in pages())]


@pytest.mark.parametrize(
    "page", [page for page in pages() if blocks(page, "python") and page not in ELSEWHERE]
)
def test_python_blocks_of_a_page_run_in_turn(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for block in blocks(page, "python"):
        exec(compile(block, str(DOCS / page), "exec"), names)


def test_pages_that_are_run_elsewhere_are_named_there():
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(), f"{test} does not read {page}"


def test_every_block_is_in_a_language_that_is_tested():
    for page in pages():
        fences = re.findall(r"^```(?=\S)(.*)\n(?:.*\n)*?^```$", (DOCS / page).read_text(), re.MULTILINE)
        assert set(fences) <= {"python", "python notest", "sh", "toml", "yaml", "math", "text"} | {
            fence for fence in fences if fence.startswith("{")
        }, page


def test_blocks_that_need_a_cluster_compile():
    found = [block for page in pages() for block in blocks(page, "python notest")]
    for block in found:
        compile(block, "cluster", "exec")
    assert found


def test_toml_blocks_are_toml():
    found = [tomllib.loads(block) for page in pages() for block in blocks(page, "toml")]
    assert found


def commands(text):
    """Return the command lines of digrad in blocks, indented lines and quotes of a page, without placeholders."""
    text = text.replace("\\\n", " ")
    lines = re.findall(r"^(?:    )?(?:srun )?(digrad [^#\n]*)", text, re.MULTILINE)
    quoted = re.findall(r"`(digrad [^`]*)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    quoted = [" ".join(line.split()) for line in quoted]
    return [line for line in lines + quoted if not re.search(r"[A-Z]{3,}|<TAB>|\.\.\.|\|", line)]


@pytest.mark.parametrize("path", PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_of_a_page_are_accepted(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for line in commands(path.read_text()):
        words = shlex.split(line.split(" > ")[0])[1:]
        if words == ["--version"]:
            continue
        name, *arguments = words
        assert name in digrad.commands, f"there is no `{line}`"
        accepts(digrad.commands[name], name, arguments, line)


def accepts(command, name, arguments, line):
    if isinstance(command, click.Group):
        if not arguments:
            return
        name, *arguments = arguments
        command = command.commands[name]
    try:
        command.make_context(name, arguments, resilient_parsing=False).close()
    except click.MissingParameter:
        assert not arguments, f"`{line}` is not complete"  # the bare name of a command, in a sentence
    except click.UsageError as error:
        raise AssertionError(f"`{line}`: {error.format_message()}") from error


def test_commands_are_found():
    found = commands((DOCS / "howto" / "machines.md").read_text())
    assert "digrad graph example5 --save graph.json" in found
    assert any("--nodes" in line for line in found)


def test_installation_of_the_tutorial_is_that_of_the_makefile():
    block = blocks("tutorial.md", "sh")[0]
    assert "install -c constraints.txt -e ." in block
    assert "install -c constraints.txt -e ." in (ROOT / "Makefile").read_text()


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
    assert set(titled("howto/machines.md")) == {"file: train.py", "file: train.sbatch", "file: digrad.yaml"}
