"""Networks that change with the iteration, and links: the simulator, the replicas and real processes agree."""

import signal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import digrad as dg
from digrad.metrics import PACKET_COLUMNS
from digrad.network import step_weights
from digrad.torch import Replicas
from method_cases import CASES
from torch_models import (
    CHANGING_STEPS,
    LEAFLESS,
    LEAFLESS_STEPS,
    RESTARTED,
    START,
    ChangingCase,
    Point,
    changing_cases,
)
from torch_processes import Agents

pytestmark = pytest.mark.long

ALL_CASES = changing_cases()
REAL_CASES = [case for case in ALL_CASES if not case.network.is_unreliable]
# A loop of the simulator takes a second to compile: one case of each kind; `make slow` has the others.
SIMULATED = (
    "CGT, entries",
    "PushDIGing, split, short",
    "CGT, all",
    "PushDIGing, weights",
    "DGD, last",
    "CGT, compressed, deadline",
)
EXAMPLE = dg.problems.example_quadratic()
RESTART = "link_restart.py"


class Run(NamedTuple):
    """Results of an engine."""

    x: np.ndarray  # [n, d]
    bytes_sent: np.ndarray  # before each iteration
    packets: list[
        dict[str, float]
    ]  # what is known of them after each iteration, where some may be lost or late


def simulated(case: ChangingCase) -> Run:
    trace = dg.simulate(case.method, EXAMPLE, case.network, steps=CHANGING_STEPS, x0=list(START))
    of_step = {name: trace.columns[name][:-1] for name in PACKET_COLUMNS if name in trace.columns}
    so_far = {
        name: trace.columns[name][1:]
        for name in ("delivered", "overtaken", "seconds_simulated")
        if name in trace.columns
    }
    columns = {**of_step, **so_far}
    packets = [{name: column[k] for name, column in columns.items()} for k in range(CHANGING_STEPS)]
    return Run(trace.final_x, trace.bytes_sent, packets)


def replicated(case: ChangingCase) -> Run:
    """Take one step more than is compared, to see what it sends."""
    replicas = Replicas(Point(), case.method, case.network)
    x, sent, packets = replicas.estimate().clone(), [replicas.bytes_sent], []
    for _ in range(CHANGING_STEPS + 1):
        x.copy_(replicas.estimate())
        for agent, model in enumerate(replicas.models):
            model.differentiate(agent)
        replicas.step()
        sent.append(replicas.bytes_sent)
        packets.append(replicas.link_metrics())
    return Run(x.numpy(), np.array(sent), packets)


class Runs(NamedTuple):
    """The cases in the engines of torch."""

    replicas: dict[str, Run]
    agents: list[dict[str, Any]]  # what each process stored of the real ones


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Run all cases; the replicas work while the processes wait for one another."""
    folder = tmp_path_factory.mktemp("changing")
    with Agents("changing_networks.py", 5, str(folder)) as processes:
        replicas = {case.label: replicated(case) for case in ALL_CASES}
        for rank, ended in processes.wait(240).items():
            assert ended.code == 0, f"agent {rank} failed:\n{ended.output}"
    return Runs(replicas, [load_file(folder / f"agent{i}.safetensors") for i in range(5)])


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case.label in SIMULATED else pytest.mark.slow, id=case.label)
        for case in ALL_CASES
    ],
)
def test_replicas_compute_send_and_know_what_the_simulator_does(case: ChangingCase, runs: Runs) -> None:
    simulator, replicas = simulated(case), runs.replicas[case.label]
    assert abs(replicas.x - simulator.x).max() <= 1e-12
    np.testing.assert_array_equal(replicas.bytes_sent[:-1], simulator.bytes_sent)
    for found, expected in zip(replicas.packets, simulator.packets, strict=False):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-11, nan_ok=True)
    has_clock = case.network.links is not None and case.network.links.clock is not None
    assert ("seconds_simulated" in replicas.packets[0]) == has_clock


@pytest.mark.parametrize("case", REAL_CASES, ids=lambda case: case.label)
def test_processes_compute_and_send_what_replicas_do(case: ChangingCase, runs: Runs) -> None:
    replicas, agents = runs.replicas[case.label], runs.agents
    processes = np.stack([agent[f"{case.label}/x"].numpy() for agent in agents])
    assert (replicas.x == processes).all()
    if case.network.period != 1 and case.method.needs != {"column"}:  # push-sum weighs with what it carries
        average = agents[0][f"{case.label}/average"].numpy()
        np.testing.assert_allclose(average, processes.mean(0), rtol=0, atol=1e-14)
    sent = sum(int(agent[f"{case.label}/bytes"]) for agent in agents)
    if isinstance(case.method, dg.PushDIGing):  # only y is known before the gradient
        links = case.network.links
        numbers = 16 if links is None or links.compressor is None else links.compressor.wire_bytes(2, 8)
        ahead = numbers * np.count_nonzero(step_weights(case.network, "C", CHANGING_STEPS, 1).weight)
        assert sent == replicas.bytes_sent[CHANGING_STEPS] + ahead
    else:  # everything that the next step mixes has left already
        assert sent == replicas.bytes_sent[CHANGING_STEPS + 1]


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if getattr(case.method, "mixing", "") == "row"],
    ids=lambda case: case.label,
)
@pytest.mark.parametrize(
    "graph",
    [pytest.param(dg.graphs.example5(), marks=pytest.mark.slow), dg.graphs.out_star(5)],
    ids=["strong", "rooted"],
)
def test_replicas_mix_one_matrix_methods_with_r_as_the_simulator_does(case: Any, graph: Any) -> None:
    network = dg.Network(graph)
    replicas = replicated(ChangingCase(case.label, case.method, network))
    trace = dg.simulate(
        case.method, EXAMPLE, network, steps=CHANGING_STEPS, x0=list(START), record_every=CHANGING_STEPS
    )
    assert abs(replicas.x - trace.final_x).max() <= 1e-12 * max(1.0, abs(trace.final_x).max())


def test_iterations_without_edges_send_nothing_and_mix_with_the_identity() -> None:
    network = dg.Network(dg.graphs.every(5, dg.graphs.example5()))
    replicas = Replicas(Point(), dg.CGT(step_size=0.05, threshold=2.0), network)
    replicas.step()
    rows, sent = torch.randn(5, 2, dtype=torch.float64), replicas.bytes_sent
    assert torch.equal(replicas._engine.pull(rows), rows)
    assert torch.equal(replicas._engine.push(rows), rows)
    assert replicas.bytes_sent == sent


@pytest.mark.parametrize("label", ["CGT, random edges, short", "CGT, all"])
def test_replicas_resume_bitwise(label: str) -> None:
    case = next(case for case in ALL_CASES if case.label == label)
    runs = [Replicas(Point(), case.method, case.network) for _ in range(2)]
    for k in range(20):
        if k == 10:
            runs[1].load_state_dict(runs[0].state_dict())
        for replicas in runs if k >= 10 else runs[:1]:
            for agent, model in enumerate(replicas.models):
                model.differentiate(agent)
            replicas.step()
    assert all(torch.equal(*pair) for pair in zip(*(one.state_fields for one in runs), strict=True))


def test_agents_whose_link_states_differ_go_on_from_them(tmp_path: Any) -> None:
    method, network = LEAFLESS
    replicas = Replicas(Point(), method, network)
    with Agents("leafless.py", 3, str(tmp_path)) as processes:
        for _ in range(LEAFLESS_STEPS):
            for agent, model in enumerate(replicas.models):
                model.differentiate(agent)
            replicas.step()
        for rank, ended in processes.wait(120).items():
            assert ended.code == 0, f"agent {rank} failed:\n{ended.output}"
    found = torch.cat([torch.load(tmp_path / f"agent{i}.pt") for i in range(3)])
    assert torch.equal(found, replicas.estimate())


def test_killed_agents_and_replicas_go_on_to_the_same_bits(tmp_path: Path) -> None:
    """SIGKILL to a real process, one agent of three or the one of all replicas: the rest is as if nothing had been."""
    processes, replicas = ((3, str(tmp_path), "processes"), (1, str(tmp_path), "replicas"))
    with Agents(RESTART, *processes, "killed") as three, Agents(RESTART, *replicas, "killed") as one:
        for doomed in (three, one):
            assert doomed.wait(120, [0])[0].code == -signal.SIGKILL
    with Agents(RESTART, *processes, "resumed") as three, Agents(RESTART, *replicas, "resumed") as one:
        for rank, ended in [*three.wait(120).items(), *one.wait(120).items()]:
            assert ended.code == 0, f"agent {rank} failed:\n{ended.output}"
    states = [torch.load(tmp_path / f"processes{agent}.pt") for agent in range(3)]
    ended = {
        "processes": [torch.cat(rows) for rows in zip(*states, strict=True)],
        "replicas": torch.load(tmp_path / "replicas0.pt"),
    }
    for engine, (method, network) in RESTARTED.items():
        whole = Replicas(Point(), method, network)
        for _ in range(30):
            for agent, model in enumerate(whole.models):
                model.differentiate(agent)
            whole.step()
        assert all(torch.equal(a, b) for a, b in zip(ended[engine], whole.state_fields, strict=True))


def test_own_weights_of_a_sequence_are_used() -> None:
    there, back = dg.graphs.from_edges(2, [(0, 1)]), dg.graphs.from_edges(2, [(1, 0)])
    changing = dg.Network(
        [
            dg.Network(there, R=[[1, 0], [0.75, 0.25]], partial=True),
            dg.Network(back, R=[[0.5, 0.5], [0, 1]], partial=True),
        ]
    )
    replicas = Replicas(Point(), dg.DGD(step_size=0.1, mixing="row"), changing)
    rows = torch.eye(2, dtype=torch.float64)
    assert replicas._engine.mix(rows).tolist() == [[1, 0], [0.75, 0.25]]
    replicas.step()
    assert replicas._engine.mix(rows).tolist() == [[0.5, 0.5], [0, 1]]


def test_own_weights_of_a_sequence_with_links_equal_the_simulator() -> None:
    example = dg.graphs.example5()
    members = [dg.Network(dg.graphs.split(example, 2).at(k), partial=True) for k in (0, 1)]
    changing = dg.Network(members, links=dg.Links(compressor=dg.compressors.bfloat16()))
    case = ChangingCase("own weights", dg.CGT(step_size=0.02, threshold=2.0), changing)
    simulator, replicas = simulated(case), replicated(case)
    assert abs(replicas.x - simulator.x).max() <= 1e-12
    np.testing.assert_array_equal(replicas.bytes_sent[:-1], simulator.bytes_sent)
