"""digrad sweep and digrad tune, as users call them."""

import json

import pandas as pd
import pytest

from digrad.cli import main
from digrad.sweeps import workers

SPEC = """
name = "tiny"
steps = 20
start = [10.0, 10.0]
record_every = 5
graph = {kind = "example5"}
problem = {kind = "example_quartic"}
methods.CGT = {step_size = 0.05, threshold = 5.0}
methods.AB = {step_size = 0.05}
"""
SWEEP = """
[sweep]
target = {grad_norm = 1e-2}
[sweep.grid]
step_size = {low = 1e-3, high = 0.1, count = 3}
threshold = [1.0, 5.0]
"""


def call(monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["digrad", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0, capsys.readouterr()


@pytest.fixture
def spec(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "spec.toml").write_text(text)
        return "spec.toml"

    return write


def test_sweep_writes_table_and_figures_and_resumes(spec, monkeypatch, capsys, tmp_path):
    code, output = call(monkeypatch, capsys, "sweep", spec(SPEC + SWEEP))
    assert code == 0, output.err
    assert "The best 9 of 9 configurations" in output.out
    assert "plain mean of the agents" in " ".join(output.out.split())
    folder = tmp_path / "runs" / "sweep-spec"
    table = pd.read_parquet(folder / "table.parquet")
    assert table["step_size"].nunique() == 3
    assert table["threshold"].isna().sum() == 3  # AB has none
    names = {path.name for path in (folder / "figures").iterdir()}
    assert "final_loss_against_step_size.png" in names
    assert "final_loss_over_step_size_and_threshold.pdf" in names
    code, output = call(monkeypatch, capsys, "sweep", "spec.toml", "--resume", "--json")
    assert code == 0
    assert len(json.loads(output.out)) == 9
    code, output = call(monkeypatch, capsys, "sweep", "spec.toml")
    assert code == 2
    assert "--resume" in output.err


@pytest.mark.usefixtures("no_figures_here")
def test_parts_of_a_sweep_are_merged_by_resume(spec, monkeypatch, capsys, tmp_path):
    whole = ("sweep", spec(SPEC + SWEEP), "--out", "parts")
    for part in ("1/3", "3/3"):
        code, output = call(monkeypatch, capsys, *whole, "--part", part, "--json")
        assert code == 0, output.err
        assert len(json.loads(output.out)) == 3
    assert not (tmp_path / "parts" / "table.parquet").exists()
    assert call(monkeypatch, capsys, *whole)[0] == 2  # it holds rows already
    ran = []
    real = workers.run_batch
    monkeypatch.setattr(workers, "run_batch", lambda s, b: ran.extend(b.runs) or real(s, b))
    code, output = call(monkeypatch, capsys, *whole, "--resume")
    assert code == 0, output.err
    assert len(ran) == 3
    found = pd.read_parquet(tmp_path / "parts" / "table.parquet")
    call(monkeypatch, capsys, "sweep", "spec.toml", "--out", "once")
    once = pd.read_parquet(tmp_path / "once" / "table.parquet")
    pd.testing.assert_frame_equal(found.drop(columns="seconds"), once.drop(columns="seconds"), rtol=1e-9)
    assert call(monkeypatch, capsys, *whole, "--overwrite")[0] == 0
    assert not list((tmp_path / "parts").glob("part-*"))


@pytest.mark.parametrize("part", ["0/3", "4/3", "2", "a/b", "-1/3"])
def test_a_part_that_does_not_exist_is_one_line(part, spec, monkeypatch, capsys):
    code, output = call(monkeypatch, capsys, "sweep", spec(SPEC + SWEEP), f"--part={part}")
    assert code == 2
    assert "must be I/N with 1 <= I <= N" in output.err
    assert len(output.err.strip().splitlines()) == 1


@pytest.mark.usefixtures("no_figures_here")
def test_the_printed_table_tells_when_the_target_was_reached(spec, monkeypatch, capsys, tmp_path):
    code, output = call(
        monkeypatch, capsys, "sweep", spec(SPEC + SWEEP.replace("grad_norm = 1e-2", "loss = 1e9"))
    )
    assert code == 0, output.err
    reached = pd.read_parquet(tmp_path / "runs" / "sweep-spec" / "table.parquet")["iterations_to_target"]
    rows = [line.split() for line in output.out.splitlines() if " CGT " in line or " AB " in line]
    assert rows
    assert {row[-1] for row in rows} == {str(count) for count in reached}


@pytest.mark.usefixtures("no_figures_here")
def test_sweep_takes_graphs_starts_and_random_draws(spec, monkeypatch, capsys):
    text = SPEC + (
        '[sweep]\nsamples = 2\nstarts = ["zeros", "normal"]\nrandom.step_size = {low = 1e-3, high = 1e-2}\n'
        'graphs.ring = {kind = "ring", n = 5}\n'
    )
    code, output = call(monkeypatch, capsys, "sweep", spec(text), "--json")
    rows = json.loads(output.out)
    assert code == 0
    assert len(rows) == 2 * 2 * 2 * 2
    assert {(row["network"], row["start"]) for row in rows} == {
        (network, start) for network in ("graph", "ring") for start in ("zeros", "normal")
    }


def test_ctrl_c_before_the_first_row_is_one_line(spec, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "run_batch", interrupted)
    code, output = call(monkeypatch, capsys, "sweep", spec(SPEC + SWEEP))
    assert code == 130
    assert output.out == ""
    assert output.err == "Interrupted; the 0 finished rows are in runs/sweep-spec. Continue with --resume.\n"


@pytest.mark.usefixtures("no_figures_here")
def test_a_figure_is_drawn_of_fields_that_one_method_has(spec, monkeypatch, capsys, tmp_path):
    text = SPEC + "methods.CDSGDPolyak = {step_size = 0.001, momentum = 0.5}\n"
    grid = "[sweep.grid]\nmomentum = [0.1, 0.2]\nthreshold = [1, 5]\n"  # no method has both
    code, output = call(monkeypatch, capsys, "sweep", spec(text + grid))
    assert code == 0, output.err
    names = {path.name for path in (tmp_path / "runs" / "sweep-spec" / "figures").glob("*.png")}
    assert names == {"final_loss_against_threshold.png"}
    only = SPEC.replace("methods.AB = {step_size = 0.05}", "")
    grid = "[sweep.grid]\nstep_size = [0.001, 0.002]\nthreshold = [1, 5]\n"  # whole numbers
    code, output = call(monkeypatch, capsys, "sweep", spec(only + grid), "--overwrite")
    assert code == 0, output.err
    assert (
        tmp_path / "runs" / "sweep-spec" / "figures" / "final_loss_over_step_size_and_threshold.png"
    ).exists()


@pytest.mark.usefixtures("no_figures_here")
def test_tune_finds_a_step_size_and_recommends_a_threshold(spec, monkeypatch, capsys, tmp_path):
    code, output = call(monkeypatch, capsys, "tune", spec(SPEC), "--budget", 4, "--json")
    found = json.loads(output.out)
    assert code == 0, output.err
    lengths = [trial["steps"] for trial in found["trials"]]
    assert lengths.count(min(lengths)) == 4
    assert max(lengths) == 5 * min(lengths)  # which confirm the answer
    assert found["recommended_threshold"]["threshold"] > 0
    assert 0 < found["certified_step"] < 10 * found["value"]
    assert json.loads((tmp_path / "runs" / "tune-spec" / "tuning.json").read_text()) == found
    assert (tmp_path / "runs" / "tune-spec" / "figures" / "tuning.png").exists()
    code, output = call(monkeypatch, capsys, "tune", "spec.toml", "--budget", 3, "--method", "AB")
    assert code == 0
    assert "methods.AB: largest stable step" in output.out


def test_tune_notices_a_folder_that_cannot_be_made_before_the_search(spec, monkeypatch, capsys, tmp_path):
    (tmp_path / "file").touch()
    code, output = call(monkeypatch, capsys, "tune", spec(SPEC), "--out", tmp_path / "file" / "out")
    assert code != 0
    assert "steps: step_size" not in output.err  # no value was tried
    assert "file" in output.err
    assert "Traceback" not in output.err


@pytest.mark.usefixtures("no_figures_here")
def test_tune_names_the_file_and_leaves_nothing_truncated_when_the_disk_is_full(
    spec, monkeypatch, capsys, tmp_path, full_disk
):
    path = spec(SPEC)
    call(monkeypatch, capsys, "tune", path, "--budget", 3, "--out", "compiled")
    with full_disk(after=100):
        code, output = call(monkeypatch, capsys, "tune", path, "--budget", 3)
    assert code == 2
    assert output.err.splitlines()[-1].startswith("digrad: runs/tune-spec/evidence.parquet cannot be written")
    assert list((tmp_path / "runs" / "tune-spec").iterdir()) == []


@pytest.mark.usefixtures("no_figures_here")
def test_tune_compares_on_held_out_samples(spec, monkeypatch, capsys):
    problem = '{kind = "logistic", data = "breast_cancer", held_out = 0.2}'
    text = SPEC.replace('{kind = "example_quartic"}', problem).replace("[10.0, 10.0]", '"zeros"')
    code, output = call(monkeypatch, capsys, "tune", spec(text), "--budget", 3, "--json")
    assert code == 0, output.err
    assert json.loads(output.out)["metric"] == "held_out_loss"


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("", ["sweep"], "`sweep` is required here"),
        ("[sweep.grid]\n", ["sweep"], "`sweep.grid` must not be empty"),
        (
            "[sweep.grid]\nstep_size = []\n",
            ["sweep"],
            "`sweep.grid.step_size` must not be empty",
        ),
        ("[sweep.grid]\nstep_sise = [1.0]\n", ["sweep"], "Did you mean `step_size`?"),
        (
            "[sweep.grid]\nstep_size = [0.1, -1.0]\n",
            ["sweep"],
            "CGT refuses: `step_size` of CGT must be positive",
        ),
        ("[sweep.grid]\nstep_size = ['0.1']\n", ["sweep"], "must be a number, but got '0.1'"),
        ("[sweep.grid]\nstep_size = {low = 1.0, high = 0.1, count = 3}\n", ["sweep"], "low <= high"),
        (
            "[sweep.grid]\nstep_size = {low = 0.1, high = 1.0}\n",
            ["sweep"],
            "`sweep.grid.step_size.count` is required",
        ),
        ("[sweep]\ngird = {}\n", ["sweep"], "Did you mean `grid`?"),
        ("[sweep]\nrandom = {step_size = [0.1]}\n", ["sweep"], "`samples` must say how many"),
        (
            "[sweep]\ntarget = {gradnorm = 1}\ngrid = {step_size = [0.1]}\n",
            ["sweep"],
            "Did you mean `grad_norm`?",
        ),
        ("", ["tune", "--budget", "2"], "`budget` of tune must be a whole number of at least 3"),
        ("", ["tune", "--method", "AC"], "`--method` must be one of CGT, AB"),
        ("", ["tune", "--field", "treshold"], "Did you mean `threshold`?"),
        ("", ["tune", "--goal", "fast"], "'fast' is not one of"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(spec, monkeypatch, capsys, text, words, said):
    command, *options = words
    code, output = call(monkeypatch, capsys, command, spec(SPEC + text), *options)
    assert code == 2, output
    assert said in output.err
    assert output.err.count("\n") == 1
