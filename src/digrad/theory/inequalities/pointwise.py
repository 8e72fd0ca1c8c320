r"""The inequalities about a single state: clipped steps against those of a perfect tracker.

Each function returns both sides of ``lhs <= rhs`` for trackers y ``[..., n, d]`` and gradients of F ``[..., d]``,
so the same code serves a run and a hundred thousand random states. With :math:`w_i = \|y_i - v_i \nabla F\|`,
:math:`\alpha_i = \alpha \min(1, c_0/\|y_i\|)` and :math:`\bar\alpha_i = \alpha \min(1, c_0/(v_i \|\nabla F\|))`.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from digrad.theory.chains.clipping import clipped_step
from digrad.theory.chains.repaired import gamma_weights
from digrad.theory.chains.sharp import noise_weight

Floats = npt.NDArray[np.floating]
Sides = tuple[Floats, Floats]


@dataclass(frozen=True, eq=False)
class States:
    """Many states of the trackers at once, with the weights of the network.

    Attributes:
        u: Perron weights of R, ``[n]``.
        v: Perron weights of C, ``[n]``.
        y: Trackers, ``[..., n, d]``.
        grad: Gradient of F at the average, ``[..., d]``.
        step_size: alpha.
        threshold: c0.
    """

    u: Floats
    v: Floats
    y: Floats
    grad: Floats
    step_size: float
    threshold: float

    @cached_property
    def g(self) -> Floats:
        """||grad F||."""
        return np.linalg.norm(self.grad, axis=-1)

    @cached_property
    def lengths(self) -> Floats:
        """||y_i||."""
        return np.linalg.norm(self.y, axis=-1)

    @cached_property
    def w_agents(self) -> Floats:
        """w_i."""
        return np.linalg.norm(self.y - self.v[:, None] * self.grad[..., None, :], axis=-1)

    @cached_property
    def w(self) -> Floats:
        """||y - v grad F'||_F."""
        return np.linalg.norm(self.w_agents, axis=-1)

    @cached_property
    def steps(self) -> Floats:
        """alpha_i."""
        return clipped_step(self.step_size, self.threshold, self.lengths)

    @cached_property
    def references(self) -> Floats:
        """abar_i."""
        return clipped_step(self.step_size, self.threshold, self.v * self.g[..., None])

    @cached_property
    def move(self) -> Floats:
        """How far the average moves, u' alpha y/N, ``[..., d]``."""
        return np.einsum("i,...i,...id->...d", self.u / len(self.u), self.steps, self.y)

    def reference(self, scale: float) -> Floats:
        """Return abar_k = alpha min(1, c0/(scale g)); scale is ||v|| in the paper, max v in the sharp chain."""
        return clipped_step(self.step_size, self.threshold, scale * self.g)


def clipping_difference(states: States) -> Sides:
    """Lemma pre1 of the paper, per agent: |alpha_i - abar_i| ||y_i|| <= abar_i w_i."""
    return np.abs(states.steps - states.references) * states.lengths, states.references * states.w_agents


def step_difference(states: States) -> Sides:
    """Per agent: ||alpha_i y_i - abar_i v_i grad F|| <= min(alpha, 2 abar_i) w_i; clipping is a projection."""
    ideal = (states.references * states.v)[..., None] * states.grad[..., None, :]
    lhs = np.linalg.norm(states.steps[..., None] * states.y - ideal, axis=-1)
    return lhs, np.minimum(states.step_size, 2 * states.references) * states.w_agents


def step_length(states: States) -> Sides:
    """Sharp pre2a: ||alpha y||_F <= alpha w + (alpha N max v abar_k)^(1/2) g."""
    n, top = len(states.v), float(states.v.max())
    lhs = np.linalg.norm(states.steps * states.lengths, axis=-1)
    ideal = np.sqrt(states.step_size * n * top * states.reference(top)) * states.g
    return lhs, states.step_size * states.w + ideal


def step_length_printed(states: States) -> Sides:
    """The paper's pre2a, valid as printed (C6): ||alpha y||^2 <= 6 kv^2 abar^2 w^2 + 3N abar^2 ||v||^2 g^2."""
    size = float(np.linalg.norm(states.v))
    reference = states.reference(size)
    worst = size / float(states.v.min())
    lhs = np.sum((states.steps * states.lengths) ** 2, axis=-1)
    ideal = 3 * len(states.v) * (reference * size * states.g) ** 2
    return lhs, 6 * (worst * reference * states.w) ** 2 + ideal


def inner_product(states: States, *, printed: bool = False) -> Sides:
    """-<grad F, u' alpha y/N> <= -(u'v/2N) abar g^2 + weight abar w^2 (A4).

    The weight is (2||v||/N) max u_i/v_i^2; as ``printed`` in (temp10), 2 kuv^2 ||v||^2/(N u'v), it is too small.
    """
    n, size, uv = len(states.v), float(np.linalg.norm(states.v)), float(states.u @ states.v)
    weight, _ = gamma_weights(states.u, states.v)
    if printed:
        weight = 2 * float((states.u / states.v).max()) ** 2 * size**2 / (n * uv)
    reference = states.reference(size)
    lhs = -np.einsum("...d,...d->...", states.grad, states.move)
    return lhs, reference * (weight * states.w**2 - uv / (2 * n) * states.g**2)


def quadratic_term(states: States) -> Sides:
    """||move||^2/2 <= (3/2) ||v||^2 abar^2 g^2 + (3||v||^2/N) max(u_i/v_i^2) abar^2 w^2 (C5)."""
    size = float(np.linalg.norm(states.v))
    _, weight = gamma_weights(states.u, states.v)
    squares = 1.5 * (size * states.g) ** 2 + weight * states.w**2
    return np.sum(states.move**2, axis=-1) / 2, states.reference(size) ** 2 * squares


def descent_core(states: States) -> Sides:
    """-<grad F, move> + (LF/2) ||move||^2 <= -(u'v/2N) abar g^2 + alpha Nw w^2.

    LF is taken as large as the condition allows, 1/(4 alpha max v).
    """
    n, top, uv = len(states.v), float(states.v.max()), float(states.u @ states.v)
    curvature = 1 / (4 * states.step_size * top)
    noise = noise_weight(states.u, states.v)
    lhs = curvature / 2 * np.sum(states.move**2, axis=-1) - np.einsum(
        "...d,...d->...", states.grad, states.move
    )
    rhs = states.step_size * noise * states.w**2 - uv / (2 * n) * states.reference(top) * states.g**2
    return lhs, rhs
