"""NumPy, the simulator, the replicas and real processes compute the same numbers."""

import itertools
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from digrad.core.traffic import measure_communication
from digrad.graphs import example5
from digrad.network import Network
from digrad.problems import logistic
from digrad.simulation import simulate
from digrad.testing.numpy_net import NumPyNet, final
from digrad.torch import Replicas
from torch_models import (
    BITWISE_METHODS,
    BITWISE_STEPS,
    LogisticData,
    LogisticModel,
    bitwise_network,
    bitwise_settings,
    cases,
    network_loss,
    network_model,
)
from torch_processes import Agents, run

pytestmark = pytest.mark.long

STEPS = 8
NORMALISED = ("NormalizedAB", "DNSGD", "GTNSGDm", "DeMuon", "NSGDm")  # a short tracker amplifies rounding
# What a method tracks, by case: the sum of the first is the sum of the second.
TRACKING = {
    **dict.fromkeys(
        ("CGT", "CGT-agents", "SoftCGT", "AB", "PushPull", "AugPushPull", "NormalizedAB"), ("y", "g")
    ),
    **dict.fromkeys(("PushDIGing", "PushSAGA", "ADDOPT", "DSGT", "FROST"), ("y", "g")),
    "SONATA": ("s", "g"),
    "DNSGD": ("v", "g"),
    "GTNSGDm": ("y", "v"),
    "DeMuon": ("y", "m"),
    "MomentumTracking": ("y", "u"),
    "DAMSGrad": ("u", "vhat"),
    "DAdaGrad": ("u", "vhat"),
}
# One method per kind of communication; `make slow` compares the simulator with NumPy for all of them.
SIMULATED = ("CGT", "FROST", "PushDIGing", "DSGT", "JiangClip")
PUSH_SUM = ("SGP", "SubgradientPush", "PushDIGing", "PushSAGA", "ADDOPT", "SONATA")


@pytest.fixture(scope="module")
def problem() -> Any:
    return logistic(
        data="digits",
        agents=5,
        partition="sorted",
        reg_weight=[1e-3, 2e-3, 0, 1e-3, 5e-3],
        reg_power=[4, 2, 2, 3, 4],
    )


@pytest.fixture(scope="module")
def data_path(problem: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logistic") / "data.npz"
    local = problem.local
    rows = {
        f"rows{i}": (2 * target - 1)[:, None] * np.asarray(block, np.float64)
        for i, (block, target) in enumerate(zip(local.features, local.targets, strict=True))
    }
    np.savez(path, weight=local.reg_weight, power=local.reg_power, **rows)
    return path


class Runs(NamedTuple):
    """The same runs in NumPy and by three engines."""

    expected: dict[str, np.ndarray]  # [5, d] by case
    simulated: dict[str, np.ndarray]  # of some
    replicas: dict[str, np.ndarray]  # [5, d] by case
    agents: list[dict[str, np.ndarray]]  # what each process stored


def run_all(problem: Any, data_path: Path, which: str) -> Runs:
    """Run the cases; this process works while the others wait for one another."""
    chosen = cases(which)
    simulated_ones = [case for case in chosen if which == "variants" or case.label in SIMULATED]
    with Agents("logistic.py", 5, str(data_path), str(data_path.parent), str(STEPS), which) as processes:
        simulated = {
            case.label: simulate(
                case.method,
                problem,
                Network(example5()),
                steps=STEPS,
                batch_size=16,
                seed=3,
                record_every=STEPS,
            ).final_x
            for case in simulated_ones
        }
        data = LogisticData(data_path)
        expected = {case.label: numpy_answers(case.method, data) for case in chosen}
        replicas = {case.label: replica_answers(case.method, data) for case in chosen}
        for rank, ended in processes.wait(240).items():
            assert ended.code == 0, f"agent {rank} failed:\n{ended.output}"
    agents = []
    for i in range(5):
        with np.load(data_path.parent / f"agent{i}.npz") as stored:
            agents.append(dict(stored))
    return Runs(expected, simulated, replicas, agents)


@pytest.fixture(scope="module")
def runs(problem: Any, data_path: Path) -> Runs:
    return run_all(problem, data_path, "methods")


@pytest.fixture(scope="module")
def agents(runs: Runs) -> list[dict[str, np.ndarray]]:
    return runs.agents


def numpy_answers(method: Any, data: LogisticData) -> np.ndarray:
    model, iterations = LogisticModel(data.rows[0].shape[1]), itertools.count()

    def gradient(x: np.ndarray) -> np.ndarray:
        k, rows = next(iterations), []
        for agent, point in enumerate(x):
            model.x.data, model.x.grad = torch.from_numpy(point.copy()), None
            data.loss(model, agent, k).backward()
            rows.append(model.x.grad.numpy())
        return np.stack(rows)

    network = Network(example5())
    net = NumPyNet(5, R=network.R.toarray(), C=network.C.toarray(), W=network.W.toarray())
    return final(method, net, gradient, np.zeros((5, len(model.x))), STEPS)


def replica_answers(method: Any, data: LogisticData) -> np.ndarray:
    replicas = Replicas(LogisticModel(data.rows[0].shape[1]), method, Network(example5()))
    for k in range(STEPS):
        replicas.zero_grad()
        for agent, model in enumerate(replicas.models):
            data.loss(model, agent, k).backward()
        replicas.step()
    return replicas.estimate().numpy()


def check_agreement(case: Any, runs: Runs) -> None:
    expected, replicas = runs.expected[case.label], runs.replicas[case.label]
    processes = np.stack([agent[f"{case.label}/x"] for agent in runs.agents])
    tolerance = 1e-8 if case.label.startswith(NORMALISED) else 1e-12
    scale = max(1.0, float(abs(expected).max()))
    for found in (replicas, processes, runs.simulated.get(case.label, expected)):
        assert abs(found - expected).max() <= tolerance * scale
    if "mean" not in case.method.needs:  # an all-reduce adds in an order of its own
        assert (replicas == processes).all()


@pytest.mark.parametrize("case", cases("methods"), ids=lambda case: case.label)
def test_numpy_simulator_replicas_and_processes_agree(case: Any, runs: Runs) -> None:
    check_agreement(case, runs)


@pytest.mark.slow
def test_simulator_replicas_and_processes_agree_on_variants(problem: Any, data_path: Path) -> None:
    runs = run_all(problem, data_path, "variants")
    for case in cases("variants"):
        check_agreement(case, runs)


@pytest.mark.parametrize("label", sorted(TRACKING))
def test_trackers_of_processes_sum_to_the_gradients_at_every_step(
    label: str, agents: list[dict[str, np.ndarray]]
) -> None:
    # FROST has no column-stochastic matrix: it conserves the sum weighted by the Perron vector of R.
    weights = Network(example5()).u if label == "FROST" else np.ones(5)
    tracker, tracked = (
        sum(weight * agent[f"{label}/{name}"] for weight, agent in zip(weights, agents, strict=True))
        for name in TRACKING[label]
    )
    assert tracker.shape == (STEPS, 64)
    assert abs(tracked).max() > 0.01
    assert abs(tracker - tracked).max() <= 1e-12 * max(1.0, abs(tracked).max())


@pytest.mark.parametrize("label", PUSH_SUM)
def test_push_sum_weights_of_processes_sum_to_n_at_every_step(
    label: str, agents: list[dict[str, np.ndarray]]
) -> None:
    w = sum(agent[f"{label}/w"] for agent in agents)
    assert w.shape == (STEPS, 1)
    assert abs(w - 5).max() <= 1e-12


@pytest.mark.parametrize("case", cases("methods"), ids=lambda case: case.label)
def test_processes_send_the_bytes_that_a_method_declares(
    case: Any, agents: list[dict[str, np.ndarray]]
) -> None:
    vectors, scalars = case.traffic
    measured = measure_communication(case.method)
    numbers = vectors * 64 + (5 if scalars == "n" else int(scalars))
    starts = case.label == "SubgradientPush" or (measured.all_reduces and not vectors)  # with an exchange
    rounds = STEPS + bool(starts or measured.early)
    sent = sum(int(agent[f"{case.label}/bytes"]) for agent in agents)
    ring = 2 * 4 * measured.all_reduces * 64  # of five agents
    step = 8 * (example5().n_edges * numbers + ring)
    assert STEPS * step <= sent <= rounds * step
    if not vectors:
        assert sent == rounds * step


def test_replicas_and_processes_agree_bitwise_on_networks(tmp_path: Path) -> None:
    run("bitwise.py", 5, str(tmp_path), "small", "zeromq")
    check_bitwise(tmp_path, "small")


@pytest.mark.parametrize("way", [pytest.param("direct", marks=pytest.mark.slow), "mixed"])
def test_replicas_and_processes_agree_bitwise_on_large_messages(way: str, tmp_path: Path) -> None:
    run("bitwise.py", 5, str(tmp_path), "large", way)
    agents = check_bitwise(tmp_path, "large")
    elsewhere = {2, 4} if way == "mixed" else set()
    for agent, stored in enumerate(agents):
        near = set(range(5)) - elsewhere - {agent}
        can_share = agent not in elsewhere and sys.platform == "linux"
        assert set(stored["writers"].tolist()) == (near if can_share else set())


@pytest.mark.parametrize("way", ["direct", "zeromq"])
def test_agents_that_are_all_in_time_agree_bitwise_whether_there_is_a_deadline_or_not(
    way: str, tmp_path: Path
) -> None:
    """The synchronous ones are equal to replicas; agents that are ahead of a slow one do not change what it takes."""
    run("bitwise.py", 5, str(tmp_path), "deadline", way)
    check_bitwise(tmp_path, "deadline")


def check_bitwise(folder: Path, size: str) -> list[dict[str, torch.Tensor]]:
    """Compare what the processes stored with replicas of the same runs; return what they stored."""
    agents = [load_file(folder / f"agent{i}.safetensors") for i in range(5)]
    for row, (label, name, dtype, messages) in enumerate(bitwise_settings(size)):
        replicas = Replicas(
            network_model(name, dtype), BITWISE_METHODS[label], bitwise_network(messages), weight_decay=1e-3
        )
        for k in range(BITWISE_STEPS[size]):
            replicas.zero_grad()
            for agent, model in enumerate(replicas.models):
                network_loss(model, agent, k, dtype).backward()
            replicas.step()
        for field, values in replicas.state_fields._asdict().items():
            for agent in range(5):
                there = agents[agent][f"{row}/{field}"][0]
                assert torch.equal(values[agent], there), (
                    label,
                    name,
                    dtype,
                    messages,
                    field,
                    agent,
                )
        for agent, model in enumerate(replicas.models):
            for key, value in model.named_buffers():
                assert torch.equal(value, agents[agent][f"{row}/buffer/{key}"])
    return agents
