"""The commands of a page run, in its order, in a folder with the files that its reader has by then.

What takes long is shortened by SHORTER. What needs a network, processes, machines or minutes is in ELSEWHERE, with the
test that runs it.
"""

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from digrad.cli.main import digrad
from docs_pages import DOCS, ROOT, pages

pytestmark = pytest.mark.long

PROSE = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md")), *(DOCS / page for page in pages())]
PLACEHOLDERS = {"DIR [DIR ...]": "runs/done runs/done", "SPEC": "spec.toml", "RUN": "runs/done", "DIR": "dir"}
SHORTER = {
    r"^methods --measure$": "methods CGT --measure",
    r"^tune (\S+)$": r"tune \1 --budget 3 --steps 20",
    r"^certify (\S+\.toml)": r"certify \1 --steps 5",
}
ELSEWHERE = {
    r"^demo$": "tests/cli/test_commands.py::test_demo_shows_that_tracking_explodes_and_cgt_converges",
    r"^certify examples/": "tests/cli/test_theory_commands.py::"
    "test_example_of_the_theory_is_proven_with_a_practical_step",
    r"^certify runs/reproduce-logistic": "tests/theory/certificates/test_certify.py::"
    "test_certified_steps_of_the_papers_problem",
    r"^certify --verify": "tests/cli/test_theory_commands.py::"
    "test_certify_prints_what_is_proven_and_writes_a_certificate_that_is_verified",
    r"^reproduce logistic": "tests/paper/test_logistic.py::smoke",
    r"^reproduce cifar": "tests/paper/test_cifar.py::test_command_of_the_pages_measures_a_step",
    r"^reproduce links": "tests/paper/test_link_bias.py::test_only_undelivered_mass_that_is_kept_leaves_no_bias",
    r"^(run|smoothness) (mine|smoothness).toml$": "tests/specs/images/test_training_jobs.py::"
    "test_specification_of_the_page_trains_and_is_measured",
    r"^methods LazyAB$|^run lazy.toml": "tests/docs/test_own_method.py::"
    "test_commands_of_the_page_list_and_run_the_method",
    r"^run stations.toml": "tests/specs/test_spec.py::test_own_problem_of_the_page_runs_from_its_file",
    r"^data get a9a": "tests/data/test_locate.py::test_locate_downloads_into_the_cache_once",
    r"^data get cifar10": "tests/data/test_cifar.py::test_fetch_unpacks_the_archive_into_the_cache",
    r"^launch .*--nodes": "tests/torch/machines/test_hosts.py::"
    "test_hosts_train_as_documented_and_unauthenticated_peers_stay_out",
    r"^launch .*torch_digits_mlp": "tests/torch/test_examples.py::"
    "test_five_agents_learn_all_digits_although_each_sees_two_in_under_a_minute",
    r"^launch .*torch_wan": "tests/torch/test_examples.py::"
    "test_ten_local_steps_and_four_bits_learn_with_a_sixtieth_of_the_bytes",
    r"^launch --agents 2 train.py$": "tests/torch/test_pages.py::test_loop_of_a_trainer_library_trains_without_ddp",
    r"^launch --agents 5 train.py": "tests/torch/test_pages.py::test_scripts_of_the_pages_train",
    r"^launch --agents 5 --graph": "tests/torch/test_pages.py::"
    "test_script_of_machines_md_trains_with_the_graph_that_launch_names",
}
# Commands in a sentence, which would end with a line that says what is missing.
MENTIONED = (
    *("run", "sweep", "tune", "certify", "launch"),
    "certify --paper",
    *("launch --check", "launch --graph", "launch --graph FILE"),
)
SPEC = """
name = "spec"
steps = 8
graph = {kind = "ring", n = 3}
problem = {kind = "cosh", center = [[0.5], [-0.5], [0.2]]}
methods.CGT = {step_size = 0.05, threshold = 1.0}
sweep.grid.step_size = [0.01, 0.1]
"""


def commands(text):
    """Return the command lines of digrad in blocks, indented lines and quotes of a page, in order."""
    text = re.sub(r"\\\n\s*", "", text)
    for words in re.findall(r"^ *(?:srun )?digrad ([^#\n]*)|`digrad ([^`]*)`", text, re.MULTILINE):
        line = " ".join("".join(words).split())
        for placeholder, value in PLACEHOLDERS.items():
            line = re.sub(rf"(?<![\w-]){re.escape(placeholder)}(?!\w)", value, line)
        yield line


def complete(text):
    """Return the commands that can be typed as they stand."""
    return [line for line in commands(text) if line not in MENTIONED and not re.search(r"<TAB>|\$", line)]


RUN = {path: complete(path.read_text()) for path in PROSE}


def test_commands_are_found_in_order():
    found = complete((DOCS / "guides" / "machines.md").read_text())
    assert found.index("graph example5 --save graph.json") < found.index("graph graph.json")
    assert any("--nodes" in line for line in found)
    assert "report runs/done runs/done" in complete((DOCS / "guides" / "report.md").read_text())


@pytest.mark.parametrize("path", PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_of_a_page_are_accepted(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for line in RUN[path]:
        words = shlex.split(line.split(" > ")[0])
        if words in (["--version"], ["--help"]):
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
    except click.UsageError as error:
        raise AssertionError(f"`{line}`: {error.format_message()}") from error


@pytest.fixture(scope="module")
def done(no_figures, tmp_path_factory):
    """A folder of a run."""
    folder = tmp_path_factory.mktemp("done")
    (folder / "spec.toml").write_text(SPEC)
    run(f"run {folder}/spec.toml --out {folder}/run")
    return folder / "run"


def run(line):
    words, _, file = line.partition(" > ")
    result = CliRunner().invoke(digrad, shlex.split(words))
    assert result.exit_code == 0, f"`digrad {line}`: {result.output} {result.exception!r}"
    if file:
        Path(file).write_text(result.stdout)
    return result.output


def short(line):
    for long, shorter in SHORTER.items():
        line = re.sub(long, shorter, line)
    return line


HERE = {
    path: list(
        dict.fromkeys(short(line) for line in lines if not any(re.search(one, line) for one in ELSEWHERE))
    )
    for path, lines in RUN.items()
}


@pytest.mark.parametrize(
    "path", [path for path, lines in HERE.items() if lines], ids=lambda path: str(path.relative_to(ROOT))
)
def test_commands_of_a_page_run_in_turn(path, done, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Thirty figures, which tests/plots/test_inequalities.py draws, and what tests/cli/test_theory_commands.py prints.
    monkeypatch.setattr("digrad.theory.RunCheck.figures", lambda check: {})
    monkeypatch.setattr("digrad.theory.certificates.certify._explained", lambda *asked: {})
    for name in ("spec", "experiment"):
        Path(f"{name}.toml").write_text(SPEC)
    Path("runs").mkdir()
    Path("runs/done").symlink_to(done)
    for line in HERE[path]:
        run(line)
        if line.endswith("> experiment.toml"):
            Path("experiment.toml").write_text(SPEC)  # the steps of the demo take a quarter of a minute


def test_commands_that_run_elsewhere_are_run_there():
    for pattern, place in ELSEWHERE.items():
        assert any(re.search(pattern, line) for lines in RUN.values() for line in lines), (
            f"no page has {pattern}"
        )
        file, _, name = place.partition("::")
        assert f"def {name}" in (ROOT / file).read_text(), place
