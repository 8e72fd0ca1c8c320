"""Networks that misbehave, in replicas and processes: their invariants, whatever the network and the policy."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  NumPy knows bfloat16 through it, and JAX imports it
import numpy as np
import pytest
import torch
from torch import nn

import digrad as dg
from digrad.errors import ArgumentError
from digrad.links import coders
from digrad.torch import Replicas
from digrad.torch.fated_agent import BLOCK, FateTable
from link_invariants import (
    AT_EVERY_STEP,
    METHODS,
    STEPS,
    Moment,
    Setting,
    check_convergence,
    check_mass,
    drawn,
    drawn_or_coded,
)
from torch_models import Point
from torch_processes import Agents

pytestmark = pytest.mark.filterwarnings("ignore:.*divides by a weight")

SEEDS = range(20)
CODERS = [coders.top_k(1), coders.random_k(1), coders.sign(), coders.quantize(2), coders.bfloat16()]


class Rows(nn.Module):
    """The point of one agent."""

    def __init__(self, x: np.ndarray) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor(x))


def replicas_of(setting: Setting) -> Replicas:
    return Replicas([Rows(row) for row in setting.x0], setting.method, setting.network)


def advance(replicas: Replicas, setting: Setting) -> None:
    at = torch.stack([model.x.detach() for model in replicas.models]).numpy()  # pyright: ignore[reportCallIssue]
    for model, grad in zip(replicas.models, setting.gradient(at), strict=True):
        model.x.grad.copy_(torch.tensor(grad))  # pyright: ignore[reportAttributeAccessIssue]
    replicas.step()


def owed_by(replicas: Replicas) -> list[np.ndarray]:
    """Return what each array that is pushed still owes."""
    books = replicas.state_dict()["state"].get("links", {})
    calls = sorted({name.split()[1] for name in books if name.startswith("owed ")})
    return [
        np.concatenate([book.numpy() for name, book in books.items() if name.startswith(f"owed {call} of ")])
        for call in calls
    ]


def replicated(setting: Setting, steps: int) -> list[Moment]:
    replicas, found = replicas_of(setting), []
    for _ in range(steps):
        advance(replicas, setting)
        state = replicas.state_fields
        found.append(Moment(type(state)(*(value.numpy().copy() for value in state)), owed_by(replicas)))
    return found


@pytest.mark.parametrize("check", AT_EVERY_STEP.values(), ids=AT_EVERY_STEP)
def test_invariants_hold_at_every_step(check: Any) -> None:
    for seed in SEEDS:
        check(replicated, drawn(seed))


def test_what_is_owed_vanishes_with_the_trackers_and_the_error() -> None:
    for seed in range(3):
        check_convergence(replicated, drawn(seed, ["CGT", "AB", "PushPull"][seed % 3]))


def test_fates_are_the_same_whoever_asks_for_them_and_when() -> None:
    for seed in SEEDS:
        fates, asked = (drawn(seed).fates() for _ in range(2))
        table, last = FateTable(asked), BLOCK + 10
        ages, awake = fates.ages(0, last), fates.awake(0, last)
        for k in (last - 1, 0, BLOCK, 5, BLOCK - 1):  # in any order, also after a resume
            assert [table.age(k, arc) for arc in range(len(fates.arcs))] == ages[k].tolist()
            assert [table.is_awake(k, agent) for agent in range(fates.n)] == awake[k].tolist()


def test_processes_compute_what_replicas_do_to_the_last_bit(tmp_path: Path) -> None:
    """So that every invariant of replicas is one of processes."""
    n, seeds = 3, range(6)
    extra = {rank: {"DIGRAD_METRICS": str(tmp_path)} for rank in range(n)}
    with Agents("fated.py", n, str(tmp_path), str(n), *map(str, seeds), extra=extra) as processes:
        expected = {}
        for seed in seeds:
            setting = drawn_or_coded(seed, n=n)
            replicas = replicas_of(setting)
            for _ in range(STEPS):
                advance(replicas, setting)
            expected[seed] = replicas.state_dict()["state"]
        for rank, ended in processes.wait(120).items():
            assert ended.code == 0, f"agent {rank} failed:\n{ended.output}"
    agents = [torch.load(tmp_path / f"agent{i}.pt") for i in range(n)]
    for seed, state in expected.items():
        for name, value in state["fields"].items():
            assert torch.equal(torch.cat([agent[seed]["fields"][name] for agent in agents]), value), seed
        books = {name: book for agent in agents for name, book in agent[seed].get("links", {}).items()}
        assert books.keys() == state.get("links", {}).keys()
        assert all(torch.equal(book, state["links"][name]) for name, book in books.items()), seed
    # Bytes are those that travelled, whatever a coder would have made of them.
    for rank, agent in enumerate(agents):
        assert all(one["bytes_sent"] == one["travelled"] > 0 for one in agent.values())
        lines = (tmp_path / f"agent-{rank}.jsonl").read_text().splitlines()
        measured = [json.loads(line)["bytes"] for line in lines]
        assert len(measured) == len(seeds) * STEPS
        assert sum(measured) == sum(one["travelled"] for one in agent.values())


def test_replicas_without_links_know_of_no_packets():
    replicas = Replicas(Point(), METHODS["CGT"], dg.graphs.example5())
    assert replicas.link_metrics() == {}
    assert replicas.slowest() is None


@pytest.mark.parametrize("coder", CODERS, ids=repr)
def test_coders_make_of_tensors_what_they_make_of_arrays(coder: Any) -> None:
    rng = np.random.default_rng(0)
    for width in (1, 2, 9):
        values, chosen = rng.standard_normal((20, width)), rng.random((20, width)) < 0.5
        values[0] = 0
        found = coder.code(torch.tensor(values), torch.tensor(chosen)).numpy()
        np.testing.assert_allclose(found, np.asarray(coder.code(values, chosen)), rtol=1e-15)


@pytest.mark.parametrize("coder", CODERS, ids=repr)
def test_coded_and_noisy_trackers_keep_their_sum(coder: Any) -> None:
    for seed in range(6):
        setting = drawn(seed, "CGT")
        setting = setting.with_links(replace(setting.network.links, coder=coder, noise=0.1, clock=None))  # pyright: ignore[reportArgumentType]
        check_mass(replicated, setting)


def test_books_of_other_links_are_refused() -> None:
    """What they owe would be forgotten, or be delivered by other rules."""
    setting = drawn(0, "CGT")
    setting = setting.with_links(dg.Links(loss=0.5))
    stored = replicas_of(setting)
    for _ in range(3):
        advance(stored, setting)
    state = stored.state_dict()
    replicas_of(setting).load_state_dict(state)
    for links in (dg.Links(loss=0.5, seed=1), None):
        with pytest.raises(ArgumentError, match=r"has the books of Links\(loss=0.5\), but the network has"):
            replicas_of(setting.with_links(links)).load_state_dict(state)
