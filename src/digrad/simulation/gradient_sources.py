"""Gradient sources: the samples and the noise of every step, and how its gradient is made of them.

A source may remember something between steps; its memory is carried beside the state of the method, which sees neither
samples nor memory. So one method runs with any of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from digrad.arrays import clip_rows
from digrad.noise import Gaussian, draws
from digrad.privacy import Private
from digrad.problems import LossCode, Problem
from digrad.sampling import PRIVACY
from digrad.simulation.run_options import Sampler


class Source(Protocol):
    """A way from samples to gradients; compiled in, hence compared by value."""

    def init(self, x: jax.Array) -> Any:
        """Return the memory before the first step, for stacked estimates x ``[n, d]``."""
        ...

    def gradients(
        self, losses: LossCode, arrays: Any, x: jax.Array, index: jax.Array | None, memory: Any
    ) -> tuple[jax.Array, Any]:
        """Return gradients ``[n, d]`` at x of the samples ``index`` ``[n, batch]``, and the memory after that."""
        ...


@dataclass(frozen=True)
class Mean:
    """The mean over the samples of the step; nothing is remembered."""

    def init(self, x: jax.Array) -> tuple[()]:
        """Return nothing."""
        return ()

    def gradients(
        self, losses: LossCode, arrays: Any, x: jax.Array, index: jax.Array | None, memory: tuple[()]
    ) -> tuple[jax.Array, tuple[()]]:
        """Return the gradients of the losses."""
        return losses.gradients(arrays, x, index), memory


@dataclass(frozen=True)
class Saga:
    r"""SAGA: the gradient of one sample, corrected by a table of the last gradient of each.

    .. math::
        s_i = \nabla f_{ij}(x_i) - T_{ij} + \frac{1}{m_i} \sum_l T_{il}, \qquad T_{ij} \leftarrow \nabla f_{ij}(x_i)

    Unbiased for any table, and exact at a minimum once every sample has been seen. The table starts at zero, so that no
    pass over the data comes first; its mean is kept up to date by differences.

    Args:
        sizes: m, the samples of each agent.
    """

    sizes: tuple[int, ...]

    def init(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return an empty table ``[n, m, d]``, and its mean ``[n, d]``."""
        n, d = x.shape
        return jnp.zeros((n, max(self.sizes), d), x.dtype), jnp.zeros_like(x)

    def gradients(
        self,
        losses: LossCode,
        arrays: Any,
        x: jax.Array,
        index: jax.Array | None,
        memory: tuple[jax.Array, jax.Array],
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Return the corrected gradients of one sample per agent, and the table with these."""
        assert index is not None
        (table, mean), here = memory, (jnp.arange(len(x)), index[:, 0])
        change = losses.gradients(arrays, x, index) - table[here]
        sizes = jnp.asarray(self.sizes, x.dtype)[:, None]
        return change + mean, (table.at[here].add(change), mean + change / sizes)


@dataclass(frozen=True)
class ClippedSum:
    """The sum over samples of their clipped gradients, relative to the samples expected, as privacy needs it.

    Regularisers are added after clipping.

    Args:
        clip: The largest norm of the gradient of a sample, per agent: weights of agents count after clipping.
        expected: Samples per agent and step on average: dividing by those drawn would tell their number.
    """

    clip: tuple[float, ...]
    expected: tuple[float, ...]

    def init(self, x: jax.Array) -> tuple[()]:
        """Return nothing."""
        return ()

    def gradients(
        self, losses: LossCode, arrays: Any, x: jax.Array, index: jax.Array | None, memory: tuple[()]
    ) -> tuple[jax.Array, tuple[()]]:
        """Return the sums; a place of -1 in ``index`` is no sample."""
        assert index is not None
        regulariser, clip = losses.regulariser_gradients(arrays, x), jnp.asarray(self.clip, x.dtype)[:, None]

        def clipped(sample: jax.Array) -> jax.Array:
            own = losses.gradients(arrays, x, jnp.maximum(sample, 0)[:, None]) - regulariser
            return jnp.where((sample >= 0)[:, None], clip_rows(own, clip), 0)

        total = jax.vmap(clipped, in_axes=1)(index).sum(axis=0)
        return total / jnp.asarray(self.expected, x.dtype)[:, None] + regulariser, memory


def make_source(problem: Problem, options: Mapping[str, Any]) -> Source:
    """Return how a run makes gradients of its samples."""
    sampling = options["sampling"]
    if sampling == "saga" and problem.sizes:
        return Saga(problem.sizes)
    if isinstance(sampling, Private) and problem.sizes:
        clips = sampling.clip * np.where(problem.agent_scale > 0, problem.agent_scale, 1.0)
        return ClippedSum(tuple(clips), tuple(sampling.rate * size for size in problem.sizes))
    return Mean()


def samples_of(sampler: Sampler | None, first: int, end: int, room: int) -> npt.NDArray[np.int32] | None:
    """Return the places of the samples of the iterations first, ..., end - 1; None where all are used.

    Args:
        sampler: Sampler of the run.
        first: First iteration.
        end: The one after the last.
        room: How many iterations the table has room for.
    """
    if sampler is None:
        return None
    drawn = sampler.batches(first, max(1, end - first))
    return np.pad(drawn, ((0, room - len(drawn)), (0, 0), (0, 0)))


def noise_of(
    problem: Problem, options: Mapping[str, Any], first: int, end: int, room: int
) -> npt.NDArray[np.floating] | None:
    """Return the noise of the gradients of the iterations first, ..., end - 1; None where there is none."""
    noise, sampling, length = options["gradient_noise"], options["sampling"], max(1, end - first)
    shape, drawn = (problem.n_agents, problem.dim), []
    if noise is not None:
        drawn.append(draws(noise, options["seed"], first, length, *shape))
    if isinstance(sampling, Private):
        scale = sampling.clip * sampling.noise_multiplier / (sampling.rate * np.array(problem.sizes))
        scale *= problem.agent_scale  # which is no part of what was clipped
        normal = draws(Gaussian(1.0), options["seed"], first, length, *shape, stream=PRIVACY)
        drawn.append(scale[:, None] * normal)
    if not drawn:
        return None
    return np.pad(np.sum(drawn, axis=0).astype(options["dtype"]), ((0, room - length), (0, 0), (0, 0)))
