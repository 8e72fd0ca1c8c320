"""The blocks of the guides to training run as printed: training, machines, slow_links, failures and other_tools.md."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from digrad.cli.main import digrad
from docs_pages import blocks, titled
from torch_processes import Agents, environment, free_port

LIMIT = 200.0  # seconds
# What the reader brings along.
OF_THE_READER = """
build_model = lambda: torch.nn.Linear(4, 1)
loss = torch.nn.functional.mse_loss
batches_of = lambda agent: [(torch.full((2, 4), float(agent)), torch.ones(2, 1))] * 3
evaluate = lambda model: print(f"agent {network.agent} is at {model(torch.ones(1, 4)).item():.6f}")
"""
STEP = """\
    optimizer.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
"""


def launch(folder: Path, script: str, *options: str) -> str:
    (folder / "train.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-m", "digrad", "launch", "--max-restarts", "0", *options, "train.py"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_replicas_of_the_page_agree() -> None:
    names: dict[str, Any] = {}
    exec(blocks("guides/training.md", "python")[0], names)
    assert names["replicas"].k == 100
    assert names["replicas"].consensus_error() < 0.1


def test_scripts_of_the_pages_train(tmp_path: Path) -> None:
    _, train, every = blocks("guides/training.md", "python")
    late, recipe = blocks("guides/slow_links.md", "python")
    (checkpoints,) = blocks("guides/failures.md", "python")
    flower, *changes = [
        one for one in blocks("guides/coming_from.md", "python") if one.startswith("# train.py")
    ]
    first, model_and_loop = train.split("torch.manual_seed", 1)
    resumable = checkpoints.replace("    ...\n", STEP)
    assert resumable != checkpoints
    script = (
        first
        + OF_THE_READER
        + "torch.manual_seed"
        + model_and_loop.replace("network.close()\n", "")
        + every
        + late
        + recipe
        + f"model, folder, steps = build_model(), {str(tmp_path / 'checkpoints')!r}, 100\n"
        + "optimizer = DecentralizedOptimizer(model.parameters(), dg.CGT(step_size=0.01, threshold=1.0), network)\n"
        + "scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)\n"
        + resumable
        + "optimizer.close()\n"
        + "".join([flower, *(changed(flower, change) for change in changes)]).replace(
            "range(200)", "range(80)"
        )
    )
    (tmp_path / "train.py").write_text(script)
    with Agents(str(tmp_path / "train.py"), 5) as agents:
        output = "".join(ended.output for ended in agents.wait(LIMIT).values())
    accuracies = re.findall(r"accuracy (\S+)", output)
    assert len(changes) == 4
    assert len(accuracies) == 5 * (1 + len(changes))
    assert min(map(float, accuracies)) > 0.4  # 0.1 is chance; less with privacy, whose noise is secret
    places = re.findall(r"agent \d is at (\S+)", output)
    assert len(places) == 5
    assert len(set(places)) == 1
    assert any("100" in path.name for path in (tmp_path / "checkpoints").iterdir())


def changed(script: str, change: str) -> str:
    """Return the script of coming_from.md with other lines in front of its shard, or in its place, and another loop."""
    lines, _, loop = change.partition("for k in")
    (shard,) = re.findall(r"^shard = .*\n", script, re.MULTILINE)
    script = script.replace(shard, lines if "shard = " in lines else lines + shard)
    return re.sub(r"for k in(.|\n)*(?=optimizer\.close)", "for k in" + loop, script) if loop else script


@pytest.mark.slow
def test_script_of_machines_md_trains_with_the_graph_that_launch_names(tmp_path: Path) -> None:
    graph, start = blocks("guides/machines.md", "sh")[:2]
    run_in(tmp_path, graph)
    words = start.split()
    assert words[:2] == ["digrad", "launch"]
    output = launch(tmp_path, titled("guides/machines.md")["file: train.py"], *words[2:-1])
    accuracies = re.findall(r"accuracy of the average (\S+)", output)
    assert len(accuracies) == 5
    assert min(map(float, accuracies)) > 0.6


STUBS = """
scontrol() { printf '127.0.0.1\\n127.0.0.1\\n'; }
srun() { "$@" & first=$!; "$@" & second=$!; wait $first && wait $second; }
export SLURM_JOB_NODELIST=here SLURM_NNODES=2 SLURM_JOB_ID={job} INTERFACE=lo
"""


@pytest.mark.slow
def test_slurm_script_starts_one_launch_per_node(tmp_path: Path) -> None:
    files = titled("guides/machines.md")
    (tmp_path / "train.py").write_text(files["file: train.py"])
    run_in(tmp_path, "digrad graph ring 2 --save graph.json")
    port = free_port()
    while not 20000 <= port < 40000:
        port = port - 20000 if port >= 40000 else port + 10000
    output = run_in(tmp_path, STUBS.replace("{job}", str(port - 20000)) + files["file: train.sbatch"])
    assert sorted(re.findall(r"agent (\d): accuracy", output)) == ["0", "1"]


def test_command_of_the_kubernetes_job_is_one_of_launch() -> None:
    service, policy, job = yaml.safe_load_all(titled("guides/machines.md")["file: digrad.yaml"])
    spec = job["spec"]["template"]["spec"]
    program, name, *words = spec["containers"][0]["command"]
    assert (program, name) == ("digrad", "launch")
    options = digrad.commands[name].make_context(name, list(words)).params
    first = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert options["endpoint"].split(":")[0] == first
    assert (
        options["agents"] * options["nodes"] == job["spec"]["completions"] == job["spec"]["parallelism"] == 5
    )
    assert spec["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == policy["spec"]["podSelector"]["matchLabels"]


def run_in(folder: Path, script: str) -> str:
    """Run a shell script that finds this environment's digrad first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=folder,
        env=environment(PATH=path),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("library", "steps"), [("accelerate", 20), ("lightning", 40), ("transformers", 40)])
def test_loop_of_a_trainer_library_trains_without_ddp(library: str, steps: int, tmp_path: Path) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"pip install -c constraints.txt -e '.[trainers]' for {library}")
    parts = titled("guides/other_tools.md")
    script = parts["alone"] + parts[f"trainer: {library}"] + parts["answer"]
    script += "assert not any('DistributedDataParallel' in type(m).__name__ for m in model.modules())\n"
    output = launch(tmp_path, script, "--agents", "2")
    found = re.findall(rf"agent \d: {steps} steps, bias (\S+)", output)
    assert len(found) == 2
    assert found[0] == found[1]
    assert 0.2 < float(found[0]) < 0.8  # between the 0 and 1 that each agent alone would learn
