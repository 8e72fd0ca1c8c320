"""The package of guides/method.md, written and installed as its page says, works in digrad."""

import pytest
from click.testing import CliRunner

from digrad.cli.main import digrad
from docs_pages import blocks, titled
from plugin_installs import install, visible

BLOCKS = titled("guides/method.md")


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """The folder with the files of the page; this process sees the package."""
    folder = tmp_path_factory.mktemp("package")
    for title, text in BLOCKS.items():
        if title.startswith("file: "):
            (folder / title.removeprefix("file: ")).write_text(text)
    with visible(install(folder, tmp_path_factory.mktemp("installed"))):
        yield folder


@pytest.mark.usefixtures("no_figures")
def test_commands_of_the_page_list_and_run_the_method(folder, monkeypatch):
    monkeypatch.chdir(folder)
    listed, ran = (
        CliRunner().invoke(digrad, line.split()[1:], catch_exceptions=False).stdout
        for line in BLOCKS["run"].splitlines()
    )
    assert "LazyAB" in listed
    assert "converged" in ran


def test_composition_of_the_page_converges():
    exec(blocks("guides/method.md", "python")[0], {})


def test_method_of_the_page_keeps_the_contract(capsys):
    exec(BLOCKS["check"], {})
    assert "conserves its invariant" in capsys.readouterr().out.splitlines()
