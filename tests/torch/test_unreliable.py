"""Unreliable networks in replicas: their invariants, whatever the network and the policy."""

from dataclasses import replace
from typing import Any

import ml_dtypes  # noqa: F401  NumPy knows bfloat16 through it, and JAX imports it
import numpy as np
import pytest
import torch
from torch import nn

import digrad as dg
from digrad.errors import ArgumentError
from digrad.links import compressors
from digrad.torch import Replicas
from link_invariants import (
    AT_EVERY_STEP,
    METHODS,
    Moment,
    Setting,
    check_convergence,
    check_mass,
    drawn,
)
from torch_models import Point

pytestmark = pytest.mark.filterwarnings("ignore:.*divides by a weight")

SEEDS = range(8)
COMPRESSORS = [
    compressors.top_k(1),
    compressors.random_k(1),
    compressors.sign(),
    compressors.quantize(2),
    compressors.bfloat16(),
]


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


def undelivered_by(replicas: Replicas) -> list[np.ndarray]:
    """Return the undelivered mass of each array that is pushed."""
    links = replicas.state_dict()["state"].get("links", {})
    return [links[key].numpy() for key in sorted(links) if key.kind == "pushed"]


def replicated(setting: Setting, steps: int) -> list[Moment]:
    replicas, found = replicas_of(setting), []
    for _ in range(steps):
        advance(replicas, setting)
        state = replicas.state_fields
        found.append(
            Moment(type(state)(*(value.numpy().copy() for value in state)), undelivered_by(replicas))
        )
    return found


@pytest.mark.parametrize("check", AT_EVERY_STEP.values(), ids=AT_EVERY_STEP)
def test_invariants_hold_at_every_step(check: Any) -> None:
    for seed in SEEDS:
        check(replicated, drawn(seed))


@pytest.mark.parametrize(
    ("seed", "method"),
    [(0, "CGT"), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, "AB"), (2, "PushPull")))],
)
def test_undelivered_mass_vanishes_with_the_trackers_and_the_error(seed: int, method: str) -> None:
    check_convergence(replicated, drawn(seed, method))


def test_replicas_without_links_know_of_no_packets():
    replicas = Replicas(Point(), METHODS["CGT"], dg.graphs.example5())
    assert replicas.link_metrics() == {}
    assert replicas.slowest() is None


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
def test_compressors_make_of_tensors_what_they_make_of_arrays(compressor: Any) -> None:
    rng = np.random.default_rng(0)
    for width in (1, 2, 9):
        values, chosen = rng.standard_normal((20, width)), rng.random((20, width)) < 0.5
        values[0] = 0
        found = compressor.compress(torch.tensor(values), torch.tensor(chosen)).numpy()
        np.testing.assert_allclose(found, np.asarray(compressor.compress(values, chosen)), rtol=1e-15)


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
def test_compressed_and_noisy_trackers_keep_their_sum(compressor: Any) -> None:
    for seed in range(3):
        setting = drawn(seed, "CGT")
        setting = setting.with_links(
            replace(setting.network.links, compressor=compressor, noise=0.1, clock=None)
        )  # pyright: ignore[reportArgumentType]
        check_mass(replicated, setting)


def test_state_of_other_links_is_refused() -> None:
    """Its undelivered mass would be forgotten, or be delivered by other rules."""
    setting = drawn(0, "CGT")
    setting = setting.with_links(dg.Links(loss=0.5))
    stored = replicas_of(setting)
    for _ in range(3):
        advance(stored, setting)
    state = stored.state_dict()
    replicas_of(setting).load_state_dict(state)
    for links in (dg.Links(loss=0.5, seed=1), None):
        with pytest.raises(ArgumentError, match=r"has the state of Links\(loss=0.5\), but the network has"):
            replicas_of(setting.with_links(links)).load_state_dict(state)
