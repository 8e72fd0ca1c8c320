"""The chains of scalar constants that follow the paper's proof, for comparison, with their free parameter tuned."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from digrad.network import Network
from digrad.problems import Problem
from digrad.theory.chains import paper, repaired, sharp
from digrad.theory.chains.closure import Chain, Closed, close, largest_step
from digrad.theory.chains.setting import Setting, make_settings
from digrad.theory.constants.assumptions import Smoothness
from digrad.theory.constants.norms import Norms, network_norms
from digrad.theory.constants.smoothness import L1_GRID, candidates, decade_beyond

Floats = npt.NDArray[np.floating]

CHAINS: dict[str, Chain] = {"sharp": sharp, "repaired": repaired, "paper": paper}
VALID = ("sharp", "repaired")  # the printed constants certify nothing
COARSE = 0.02  # relative accuracy of alpha while the free parameter L1 is tuned
WIDENINGS = 15  # factors of ten by which the grid of L1 may grow: room for lengths of 1e-15 to 1e15


def largest_of_chain(
    name: str,
    problem: Problem,
    network: Network,
    threshold: float,
    x0: Floats,
    constants: Smoothness | None = None,
) -> tuple[Setting, Closed | None]:
    """Return the setting of a chain whose free parameter gives the largest step, and the chain at that step, if any.

    The steps of ``paper`` prove nothing: several printed constants are invalid.
    """
    norms, chain = network_norms(network), CHAINS[name]

    def settings(grid: tuple[float, ...]) -> list[Setting]:
        options = [constants] if constants else candidates(problem, grid=grid)
        return make_settings(problem, norms, options, threshold, x0)

    setting = _tuned(chain, settings)
    return setting, largest_step(chain, setting)


def choose_constants(problem: Problem, norms: Norms, threshold: float, start: Floats) -> Smoothness:
    """Return, of the closed forms of a built-in problem, the one that certifies the largest step (chain sharp).

    Raises:
        ArgumentError: The problem has no closed form.
    """
    if len(options := candidates(problem)) == 1:
        return options[0]

    def settings(grid: tuple[float, ...]) -> list[Setting]:
        return make_settings(problem, norms, candidates(problem, grid=grid), threshold, start)

    return _tuned(sharp, settings).smoothness


def _tuned(chain: Chain, settings: Callable[[tuple[float, ...]], list[Setting]]) -> Setting:
    """Return the setting whose free parameter certifies the largest step; the grid grows while an end is best."""
    tried = settings(L1_GRID)
    if len(tried) == 1:
        return tried[0]
    best, step = _best(chain, tried, None, 0.0)
    for _ in range(WIDENINGS):
        grid = decade_beyond([each.smoothness for each in tried], best.smoothness if best else None)
        if not grid:
            break
        added = settings(grid)
        tried = [*tried, *added]
        best, step = _best(chain, added, best, step)
    return best or tried[len(L1_GRID) // 2]


def _best(
    chain: Chain, settings: list[Setting], best: Setting | None, step: float
) -> tuple[Setting | None, float]:
    """Return the setting that certifies the largest step, and that step, if it is larger than ``step`` of ``best``."""
    for setting in settings:
        # Most candidates are dismissed by one look: they do not certify a slightly larger step.
        if step and not close(chain, setting, step * (1 + COARSE)).certified:
            continue
        found = largest_step(chain, setting, start=step or 1.0, tolerance=COARSE)
        if found and found.step_size > step:
            best, step = setting, found.step_size
    return best, step
