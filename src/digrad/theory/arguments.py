"""What the public functions of the theory are given, checked at the door."""

import reprlib

import numpy as np
import numpy.typing as npt

from digrad.errors import ArgumentError
from digrad.problems import Problem
from digrad.theory.constants.assumptions import Smoothness

Floats = npt.NDArray[np.floating]


def one_number(value: object, name: str, owner: str) -> None:
    """Raise unless ``value`` is one number: neither a schedule nor an array with an entry per agent."""
    if callable(value) or getattr(value, "ndim", 0) > 0:
        kind = "a schedule" if callable(value) else f"an array of shape {getattr(value, 'shape', ())}"
        raise ArgumentError(f"`{name}` of {owner} must be one constant number, but got {kind}.")


def check_problem(problem: object, owner: str) -> None:
    """Raise unless ``problem`` is one."""
    if not isinstance(problem, Problem):
        raise ArgumentError(
            f"`problem` of {owner} must be a Problem, as digrad.problems makes them, but got {type(problem).__name__}."
        )


def check_constants(constants: object, problem: Problem, owner: str) -> None:
    """Raise unless ``constants`` are smoothness constants of all agents of a problem, ``"empirical"`` or None."""
    if isinstance(constants, Smoothness):
        if constants.L0.size != problem.n_agents:
            raise ArgumentError(
                f"`constants` of {owner} has {constants.L0.size} agents, but the problem has {problem.n_agents}."
            )
    elif constants is not None and not (isinstance(constants, str) and constants == "empirical"):
        raise ArgumentError(
            f"`constants` of {owner} must be a Smoothness, 'empirical' or None, but got {reprlib.repr(constants)}."
        )


def start_array(problem: Problem, x0: npt.ArrayLike | None, owner: str) -> Floats:
    """Return the start as ``[n, d]``: given for all agents, for each, or the problem's own."""
    shape = (problem.n_agents, problem.dim)
    wanted = f"`x0` of {owner} must be an array of shape {shape} or {shape[1:]} for {problem.name}"
    try:
        array = np.asarray(problem.start if x0 is None else x0, np.float64)
    except (TypeError, ValueError):
        raise ArgumentError(f"{wanted}, but got {reprlib.repr(x0)}.") from None
    if array.shape not in (shape, shape[1:]):
        raise ArgumentError(f"{wanted}, but got shape {array.shape}.")
    if not np.isfinite(array).all():
        raise ArgumentError(f"`x0` of {owner} must be finite, but it holds NaN or infinite entries.")
    return np.broadcast_to(array, shape).copy()
