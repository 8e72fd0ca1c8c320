"""Validation of what the public functions of the theory are given."""

import reprlib
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad.core.validation import check_network
from digrad.errors import ArgumentError
from digrad.graphs import Digraph
from digrad.network import Network
from digrad.problems import Problem
from digrad.theory.constants.assumptions import Smoothness

Floats = npt.NDArray[np.floating]
Given: TypeAlias = Smoothness | float | npt.ArrayLike | None  # smoothness, as a user gives it

CHANGES = "the network changes with time"
LOSSY = "packets may be lost or late, so that the figures of the perfect network are indicative, not a certificate"
ALTERED = "its links alter messages, but in the proof they arrive as sent"


positive_or_infinite = partial(checks.positive, allow_inf=True)


def as_smoothness(given: object, problem: Problem, owner: str) -> Smoothness | None:
    """Return constants of all agents of a problem: as given, or of Hessian norms; None for ``"empirical"`` and None."""
    if given is None or (isinstance(given, str) and given == "empirical"):
        return None
    constants = given
    if not isinstance(given, Smoothness):
        try:
            bounds = np.asarray(given, np.float64)
        except (TypeError, ValueError):
            bounds = np.full(1, np.nan)
        if bounds.ndim > 1 or not (np.isfinite(bounds).all() and (bounds >= 0).all()):
            raise ArgumentError(
                f"`smoothness` of {owner} must be a bound of every Hessian norm, one per agent, a Smoothness, or None, "
                f"but got {reprlib.repr(given)}."
            )
        constants = Smoothness(L0=bounds if bounds.ndim else np.full(problem.n_agents, float(bounds)))
    assert isinstance(constants, Smoothness)
    if constants.L0.size != problem.n_agents:
        raise ArgumentError(
            f"`smoothness` of {owner} has {constants.L0.size} agents, but the problem has {problem.n_agents}."
        )
    return constants


def check_start(
    problem: Problem, lower_bound: float, average: Floats, x: Floats, owner: str = "the run"
) -> tuple[Floats, Floats]:
    """Return f_i at the average and the gradients at x ``[n, d]``, where both must be finite and F above its bound."""
    with np.errstate(over="ignore", invalid="ignore"):
        losses, gradients = problem.local_losses(average), problem.local_gradients(x)
        here, there = float(losses.mean()), float(problem.local_losses(x).mean())
    if not (np.isfinite([here, there]).all() and np.isfinite(gradients).all()):
        raise ArgumentError(
            f"`x0` of {owner} must be a point where F and all gradients are finite, but F is {here:.6g}; "
            "start elsewhere."
        )
    terms = float(np.abs(losses).mean() + np.linalg.norm(x) * np.linalg.norm(gradients))
    if here < lower_bound - 1e-9 * max(terms, abs(lower_bound)):
        raise ArgumentError(
            f"`lower_bound` of Smoothness must not exceed F anywhere, but it is {lower_bound:.6g} and F at the start "
            f"is {here:.6g}; lower it."
        )
    return losses, gradients


def uncovered(network: Network) -> str:
    """Return why the theory says nothing of a network, or an empty string."""
    if not isinstance(network.graph, Digraph):
        return CHANGES
    if network.links is None:
        return ""
    return ALTERED if network.links.is_reliable else LOSSY


def check_covered(network: Network, owner: str) -> None:
    """Raise unless the theory is about networks like this one."""
    check_network(network, owner)
    if reason := uncovered(network):
        raise ArgumentError(f"`network` of {owner} is not covered: {reason}.")
