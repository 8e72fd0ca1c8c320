"""The paper's bound as printed: the gradient bound as a least fixed point, and the largest step that it allows.

The constants depend on a bound G of the gradient, and G depends on the constants: the potential V0 bounds F along the
run, and a function Phi turns that into a bound of the gradient. G is the least fixed point of the increasing map
T: G -> Phi(V0(G)). Read literally, the paper's supremum is infinite (erratum A13). None of this proves anything:
several printed constants are invalid.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from digrad.problems import Problem
from digrad.theory.constants.assumptions import Smoothness
from digrad.theory.constants.closed_form import candidates
from digrad.theory.constants.norms import Norms
from digrad.theory.last_step import last_step
from digrad.theory.paper.printed_constants import (
    Setting,
    conditions_hold,
    evaluate,
    gradient_bound,
    make_setting,
)

Floats = npt.NDArray[np.floating]

ITERATIONS = 400
INFLATION = 1e-9  # by which each iterate is enlarged, so that the iteration ends above the fixed point
TOLERANCE = 0.005  # relative, of the largest step
LARGEST_STEP, SMALLEST_STEP = 1e6, 1e-24


class Closed(NamedTuple):
    """The printed constants at one step size, with their gradient bound."""

    step_size: float
    grad_bound: float  # G with Phi(V0(G)) <= G if ``holds``; else the last G tried, which bounds nothing
    constants: dict[str, float]  # at that G
    holds: bool  # whether such a G was found and all conditions hold at it, as printed


def close(setting: Setting, step_size: float) -> Closed:
    """Return the least fixed point of the gradient bound, and whether all conditions hold there."""
    grad_bound = gradient_bound(setting, setting.D0)
    constants = evaluate(setting, step_size, grad_bound)
    for _ in range(ITERATIONS):
        if not conditions_hold(constants, step_size):
            break
        image = gradient_bound(setting, constants["V0"])
        if image <= grad_bound:
            return Closed(step_size, grad_bound, constants, True)
        grad_bound = image * (1 + INFLATION)
        constants = evaluate(setting, step_size, grad_bound)
    return Closed(step_size, grad_bound, constants, holds=False)


def largest_step(setting: Setting) -> Closed | None:
    """Return the printed constants at the largest step that they allow, or None: such steps form an interval from 0."""
    step = last_step(
        lambda step: close(setting, step).holds, SMALLEST_STEP, LARGEST_STEP, tolerance=TOLERANCE
    )
    found = close(setting, step)
    return found if found.holds else None


def largest_printed_step(
    problem: Problem, norms: Norms, threshold: float, x0: Floats, constants: Smoothness | None = None
) -> tuple[Setting, Closed | None]:
    """Return the setting whose free parameter L1 allows the largest step, and the printed constants at that step.

    Args:
        problem: The losses.
        norms: Of the network.
        threshold: c0.
        x0: The start, ``[n, d]``.
        constants: Constants of losses that are not built in.
    """
    options = [constants] if constants else candidates(problem)
    first = make_setting(problem, norms, options[0], threshold, x0)
    settings = [replace(first, smoothness=option) for option in options]  # their lower bound of F is one
    best, found = settings[len(settings) // 2], None
    for setting in settings:
        # Most are dismissed by one look: they do not allow a slightly larger step.
        if found and not close(setting, found.step_size * (1 + 2 * TOLERANCE)).holds:
            continue
        if (closed := largest_step(setting)) and (not found or closed.step_size > found.step_size):
            best, found = setting, closed
    return best, found
