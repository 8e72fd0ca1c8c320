"""Certified step sizes: whether CGT provably converges, and with which step."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from digrad._internal import checks
from digrad.errors import ArgumentError
from digrad.network import AnyNetwork, Network
from digrad.problems import Problem
from digrad.theory.arguments import check_constants, check_problem, start_array
from digrad.theory.chains import sharp
from digrad.theory.chains.certificate import CHAINS, PRINTED, VALID, Answer, Certificate, ChainReport
from digrad.theory.chains.closure import SMALLEST_STEP, Chain, close, largest_step
from digrad.theory.chains.setting import Setting, make_settings
from digrad.theory.constants.assumptions import INDICATIVE, Smoothness
from digrad.theory.constants.coverage import uncovered
from digrad.theory.constants.norms import Norms, network_norms
from digrad.theory.constants.smoothness import L1_GRID, candidates, decade_beyond, has_closed_form

Floats = npt.NDArray[np.floating]

Family: TypeAlias = Callable[[Sequence[float]], list[Smoothness]]  # constants for each value of a free L1
COARSE = 0.02  # relative accuracy of alpha while the free parameter L1 is tuned
WIDENINGS = 15  # factors of ten by which the grid of L1 may grow: room for lengths of 1e-15 to 1e15
EMPIRICAL_STEPS = 200
EMPIRICAL_STEP_SIZE = 0.01  # of the run along which constants are estimated when no step size is given


def certify(
    problem: Problem,
    network: AnyNetwork,
    threshold: float,
    x0: npt.ArrayLike | None = None,
    step_size: float | None = None,
    *,
    constants: Smoothness | Literal["empirical"] | None = None,
    batch_size: int | None = None,
) -> Certificate:
    """Say whether CGT provably converges with a step size, or find the largest step size with which it does.

    Args:
        problem: The losses.
        network: Who hears whom; one that changes with time, or whose links alter messages, is not covered.
        threshold: c0.
        x0: The start, ``[n, d]`` or ``[d]``; the problem's own by default.
        step_size: alpha; without it the largest certified one is found.
        constants: Smoothness constants. By default the closed form of a built-in problem, with its free
            parameter tuned; ``"empirical"`` estimates them along a run, which certifies nothing.
        batch_size: Samples per step; anything but None gets an indication only.

    Returns:
        A certificate whose verdict is decided by the chains ``sharp`` and ``repaired``.

    Raises:
        ArgumentError: The problem and the network have different numbers of agents, or an argument is malformed.

    Example:
        >>> from digrad.graphs import example5
        >>> from digrad.problems import example_quadratic
        >>> network = Network(example5())
        >>> certificate = certify(example_quadratic(), network, threshold=5.0)
        >>> certificate.verdict, certificate.alpha_max["sharp"] > 5 * certificate.alpha_max["repaired"]
        ('holds', True)
        >>> certify(example_quadratic(), network, threshold=5.0, step_size=1.0).verdict
        'fails'
    """
    check_problem(problem, "certify")
    check_constants(constants, problem, "certify")
    if callable(threshold) or callable(step_size):
        return _uncovered("schedules of the step size or the threshold are not covered", None, None)
    if getattr(threshold, "ndim", 0) or getattr(step_size, "ndim", 0):
        return _uncovered(
            "a step size or a threshold for each agent is not covered; use one number", None, None
        )
    checks.positive(threshold, "threshold", "certify", allow_inf=True)
    if step_size is not None:
        checks.positive(step_size, "step_size", "certify")
    reason = uncovered(network, "certify")
    if network.n != problem.n_agents:
        raise ArgumentError(
            f"`network` of certify has {network.n} agents, but the problem has {problem.n_agents}; build both for the "
            "same agents."
        )
    if reason or not isinstance(network, Network):
        return _uncovered(reason, step_size, float(threshold))
    caveats = []
    if batch_size is not None:
        checks.count(batch_size, "batch_size", "certify")
        caveats.append(f"gradients are mini-batches of {batch_size}: the proof needs full gradients")
    start = start_array(problem, x0, "certify")
    family = _family(problem, network, threshold, start, step_size, constants)
    options = family(L1_GRID)
    if not options:
        reason = f"no smoothness constants are known for {problem.name!r}; pass constants=Smoothness(...)"
        return _uncovered(reason, step_size, threshold)
    if not options[0].is_certifiable:
        caveats.append("the smoothness constants are estimates along a run, lower than the true ones")
    if math.isinf(threshold) and any(option.L1.any() for option in options):
        return _uncovered("an infinite threshold is covered only if all L1 are 0; clip", step_size, threshold)
    norms = network_norms(network)
    label = INDICATIVE if caveats else ""

    @cache  # all chains begin with the same grid
    def settings(grid: tuple[float, ...]) -> list[Setting]:
        return make_settings(problem, norms, family(grid), threshold, start)

    reports = {
        name: _report(_tuned(chain, settings), chain, step_size, label) for name, chain in CHAINS.items()
    }
    return _decide(reports, norms, step_size, float(threshold), caveats)


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


def _family(
    problem: Problem,
    network: Network,
    threshold: float,
    start: Floats,
    step_size: float | None,
    constants: Smoothness | Literal["empirical"] | None,
) -> Family:
    if isinstance(constants, Smoothness):
        return lambda grid: [constants]
    if constants is None:
        known = has_closed_form(problem)
        return lambda grid: candidates(problem, grid=grid) if known else []
    from digrad.theory.constants.empirical import empirical_smoothness
    from digrad.theory.trajectory import run

    step = EMPIRICAL_STEP_SIZE if step_size is None else step_size
    path = run(problem, network, step_size=step, threshold=threshold, x0=start, steps=EMPIRICAL_STEPS)
    found = empirical_smoothness(problem, path.average)
    return lambda grid: found.pareto(grid=grid)


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


def _report(setting: Setting, chain: Chain, step_size: float | None, caveat: str) -> ChainReport:
    best = largest_step(chain, setting)
    at_step = best if best and step_size is None else close(chain, setting, step_size or SMALLEST_STEP)
    caveats = (caveat, "" if chain.name in VALID else PRINTED)
    return ChainReport(chain.name, setting, best, at_step, "; ".join(each for each in caveats if each))


def _decide(
    reports: dict[str, ChainReport],
    norms: Norms,
    step_size: float | None,
    threshold: float,
    caveats: list[str],
) -> Certificate:
    proven = [name for name in VALID if reports[name].at_step.certified]
    step = step_size
    if step is None:
        step = max((reports[name].step_size_max or 0.0 for name in VALID), default=0.0) or None
    setting = reports["sharp"].setting
    reasons = [] if proven else [f"{name}: {reports[name].at_step.failed}" for name in VALID]
    verdict: Answer = "not covered" if caveats else "holds" if proven else "fails"
    return Certificate(
        verdict=verdict,
        label=INDICATIVE if caveats else "",
        reasons=(*caveats, *reasons),
        step_size=step,
        threshold=threshold,
        chains=reports,
        network=_describe(norms),
        start={"X0": setting.X0, "Y0": setting.Y0, "D0": setting.D0},
    )


def _uncovered(reason: str, step_size: float | None, threshold: float | None) -> Certificate:
    return Certificate("not covered", "", (reason,), step_size, threshold)


def _describe(norms: Norms) -> dict[str, Any]:
    return {
        "n": norms.n,
        "u": norms.u.tolist(),
        "v": norms.v.tolist(),
        "u_dot_v": norms.uv,
        **{
            f"{figure}_{name}": getattr(norm, figure)
            for name, norm in (("R", norms.R), ("C", norms.C))
            for figure in ("kind", "rho", "sigma", "tau", "kappa", "delta")
        },
    }
