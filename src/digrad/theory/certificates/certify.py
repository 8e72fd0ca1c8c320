"""Certified step sizes: whether a run provably converges, and with which step."""

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad.errors import ArgumentError
from digrad.network import Network
from digrad.problems import Problem
from digrad.simulation.run_options import make_start
from digrad.theory.arguments import Given, check_covered, positive_or_infinite
from digrad.theory.certificates.certificate import Certificate
from digrad.theory.certificates.instance import ROUNDED_UP, Instance, Start
from digrad.theory.certificates.linearisation import largest_stable_step
from digrad.theory.certificates.proof import Proof
from digrad.theory.certificates.prove_step_size import FEW, close, largest, strengthen, verify
from digrad.theory.constants.assumptions import INDICATIVE, Smoothness
from digrad.theory.constants.empirical_smoothness import empirical_smoothness
from digrad.theory.paper.printed_bound import largest_printed_step
from digrad.theory.trajectory import run

Floats = npt.NDArray[np.floating]

SCHEDULED = 10_000  # steps for which a schedule is looked at unless told otherwise
OTHER_THRESHOLDS = (0.2, 5.0)  # relative to c0
EMPIRICAL_STEPS = 200
EMPIRICAL_STEP_SIZE = 0.01  # of the run along which constants are estimated when no step size is given


def certify(
    problem: Problem,
    network: Network,
    threshold: Any,
    x0: npt.ArrayLike | None = None,
    step_size: Any = None,
    *,
    smoothness: Given | Literal["empirical"] = None,
    batch_size: int | None = None,
    steps: int = SCHEDULED,
    explain: bool = False,
) -> Certificate:
    r"""Say whether CGT provably converges with a step size, or find the largest step size with which it does.

    The same certificate covers AB (an infinite threshold), SoftCGT, a threshold or a step size per agent, schedules
    that stay below, and agents that skip steps: agent i may move by any multiple of its tracker between 0 and alpha.

    Args:
        problem: The losses.
        network: Strongly connected network, or a periodic one whose union is; links that lose or alter
            messages are not covered.
        threshold: c0: a number, an array with one per agent, or a schedule, of which the largest value counts.
        x0: The start: ``[n, d]``, ``[d]``, ``"zeros"`` or ``"normal"`` (of seed 0); the problem's own by default.
        step_size: alpha: a number, one per agent, or a schedule; without it the largest certified one is found.
        smoothness: Smoothness of losses not built in: a bound of every Hessian norm (a number, or one per agent), or a
            :class:`Smoothness`. They count as nonconvex unless ``Smoothness(convex=True)`` asserts otherwise, which
            doubles the step. ``"empirical"`` estimates constants along a run, which certifies nothing.
        batch_size: Samples per step; anything but None gets an indication only.
        steps: For how many steps schedules are looked at.
        explain: Whether to add the upper end (the largest stable step near the minimum), what costs the difference,
            and certified steps at other thresholds.

    Raises:
        ArgumentError: The problem and the network have different numbers of agents, or an argument is malformed.

    Example:
        >>> from digrad.graphs import example5
        >>> from digrad.problems import example_quadratic
        >>> network = Network(example5())
        >>> certificate = certify(example_quadratic(), network, threshold=5.0)
        >>> certificate.verdict, 0.09 < certificate.alpha_max < 0.11
        ('holds', True)
        >>> certify(example_quadratic(), network, threshold=5.0, step_size=1.0).verdict
        'fails'
    """
    instance = Instance.of(problem, network, smoothness, "certify")
    c0, reach, step_sizes = _lengths(problem, threshold, step_size, steps)
    alpha = None if step_sizes is None else float(step_sizes.max())
    caveats = []
    if batch_size is not None:
        checks.count(batch_size, "batch_size", "certify")
        caveats.append(f"gradients are mini-batches of {batch_size}: the proof needs full gradients")
    x = make_start(x0, problem, 0)
    _check_at(x, instance, "certify")
    if isinstance(smoothness, str) and not instance.not_covered:
        check_covered(network, "certify")  # by the run along which constants are estimated
        instance = replace(instance, constants=_estimated(problem, network, c0, x, alpha))
        caveats.append("the smoothness constants are estimates along a run, lower than the true ones")
    if reason := instance.not_certifiable(c0):
        return Certificate("not covered", "", (reason,), alpha, c0)
    start = instance.start(x, None, reach)
    best = largest(start)
    proof = best
    if alpha is not None:  # steps below a certified one are certified, mostly by a proof of their own
        proof = close(start, alpha) or (best if best and alpha <= best.step_size else None)
    is_fixed = not callable(threshold) and not callable(step_size)
    shares = np.ones(network.n) if step_sizes is None or not proof else step_sizes / proof.step_size
    found = _answer(start, proof, best, alpha, c0, shares if is_fixed else None, caveats)
    return replace(found, **_explained(start, best, c0)) if explain and best else found


def certify_state(
    problem: Problem,
    network: Network,
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    step_size: float,
    threshold: float,
    *,
    smoothness: Given = None,
) -> Certificate:
    """Say whether a run provably converges from one of its states on.

    Near a minimum the region that the proof needs is small, and so are the curvatures on it: far larger steps are
    certified than from the start.

    Args:
        problem: The losses.
        network: The network; of a periodic one, the first acts next.
        x: Iterates, ``[n, d]``.
        y: Trackers, ``[n, d]``, whose sum is that of the gradients at x.
        step_size: alpha, from here on.
        threshold: c0.
        smoothness: Smoothness of losses that are not built in.

    Raises:
        ArgumentError: An argument is malformed, or the trackers do not sum to the gradients.

    Example:
        >>> from digrad.graphs import example5
        >>> from digrad.problems import example_quartic
        >>> from digrad.theory import run
        >>> problem, network = example_quartic(), Network(example5())
        >>> path = run(problem, network, step_size=0.075, threshold=5.0, steps=20)
        >>> [certify_state(problem, network, path.x[k], path.y[k], 0.075, 5.0).verdict for k in (0, 20)]
        ['fails', 'holds']
    """
    instance = Instance.of(problem, network, smoothness, "certify_state")
    alpha = float(checks.one_number(checks.positive, step_size, "step_size", "certify_state"))
    c0 = float(checks.one_number(positive_or_infinite, threshold, "threshold", "certify_state"))
    here, trackers = make_start(x, problem, 0), make_start(y, problem, 0)
    _check_at(here, instance, "certify_state")
    if reason := instance.not_certifiable(c0):
        return Certificate("not covered", "", (reason,), alpha, c0)
    start = instance.start(here, trackers, np.full(network.n, c0))
    return _answer(start, close(start, alpha), None, alpha, c0, np.ones(network.n), ())


def _answer(
    start: Start,
    proof: Proof | None,
    best: Proof | None,
    step_size: float | None,
    threshold: float,
    shares: Floats | None,
    caveats: Sequence[str],
) -> Certificate:
    """Return the certificate of a step: strengthened, unless its steps follow a schedule and ``shares`` is None."""
    if proof and shares is not None:
        proof = strengthen(start, proof, shares)
    return Certificate(
        verdict="not covered" if caveats else "holds" if proof else "fails",
        label=INDICATIVE if caveats else "",
        reasons=(*caveats, *([] if proof else [_why_not(step_size, best)])),
        step_size=step_size if step_size is not None else best.step_size if best else None,
        threshold=threshold,
        proof=proof,
        largest=best,
        start=start,
        shares=shares,
    )


def verify_proof(
    problem: Problem,
    network: Network,
    stored: Mapping[str, Any],
    threshold: Any,
    x0: npt.ArrayLike | None = None,
    step_size: Any = None,
    *,
    smoothness: Given = None,
    steps: int = SCHEDULED,
    promised: Mapping[str, float | None] | None = None,
    largest: bool = False,
) -> dict[str, bool]:
    """Return whether each claim of a stored proof holds, without any search.

    Args:
        problem: The losses.
        network: The network.
        stored: The ``"proof"`` of a certificate's :meth:`~Certificate.to_dict`.
        threshold: As given to :func:`certify`; so are the others.
        x0: The start.
        step_size: The step asked for, if one was.
        smoothness: Smoothness of losses that are not built in.
        steps: For how many steps schedules are looked at.
        promised: K(eps) by eps, as a certificate stores them, to check these too.
        largest: Whether the proof is that of the largest certified step, whatever step was asked for.

    Raises:
        ArgumentError: ``stored`` is no proof for as many agents.

    Example:
        >>> from digrad.graphs import example5
        >>> from digrad.problems import example_quadratic
        >>> problem, network = example_quadratic(), Network(example5())
        >>> stored = certify(problem, network, threshold=5.0).to_dict()["proof"]
        >>> all(verify_proof(problem, network, stored, threshold=5.0).values())
        True
        >>> all(verify_proof(problem, network, stored | {"V0": 0.9 * stored["V0"]}, threshold=5.0).values())
        False
    """
    instance = Instance.of(problem, network, smoothness, "verify_proof")
    instance.check_covered("verify_proof")
    try:
        proof = Proof.from_dict(stored)
        n, level = len(proof.curvature), float(stored["level"])
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"`stored` of verify_proof must be the proof of a certificate, but {type(error).__name__}: {error}."
        ) from None
    if n != problem.n_agents:
        raise ArgumentError(
            f"`stored` of verify_proof is about {n} agents, but the problem has {problem.n_agents}."
        )
    _, reach, step_sizes = _lengths(problem, threshold, step_size, steps)
    claims, shares = {"the level is V_0/n": level == proof.level}, np.ones(n)
    if step_sizes is not None:
        shares = step_sizes / proof.step_size
        if not largest:
            claims["the step is at most the proven one"] = bool(step_sizes.max() <= proof.step_size)
    start = instance.start(make_start(x0, problem, 0), None, reach)
    if promised is not None:
        is_fixed = not callable(threshold) and not callable(step_size)
        claims["K(eps) follows"] = all(
            K is None
            or (is_fixed and _is_enough(K, proof.iterations(start.phases, reach, shares, float(eps))))
            for eps, K in promised.items()
        )
    return claims | verify(start, proof, shares)


def _is_enough(K: float, needed: float | None) -> bool:
    return needed is not None and needed <= K * (1 + ROUNDED_UP)


def first_proven(start: Start, x: Floats, y: Floats, step_size: float) -> tuple[int, Proof] | None:
    """Return a state of a run from which on it is proven to converge, about the first one, and the proof; or None.

    Args:
        start: The first state of the run.
        x: Iterates, ``[K, n, d]``.
        y: Trackers.
        step_size: alpha.
    """

    def attempt(k: int) -> Proof | None:
        return close(replace(start, x=x[k], y=y[k]) if k else start, step_size)

    low, high = 0, len(x) - 1
    if found := attempt(low):
        return low, found
    if not (found := attempt(high)):
        return None
    while high > low + 1:  # states near the minimum are proven, those before are not
        middle = (low + high) // 2
        if proof := attempt(middle):
            high, found = middle, proof
        else:
            low = middle
    return high, found


def _lengths(
    problem: Problem, threshold: Any, step_size: Any, steps: int
) -> tuple[float, Floats, Floats | None]:
    """Return the largest c0, how far each agent moves by itself in units of the largest step, and its step if given."""
    thresholds = _values(threshold, "threshold", problem.n_agents, steps, allow_inf=True)
    c0 = float(thresholds.max())
    if step_size is None:
        return c0, thresholds, None
    step_sizes = _values(step_size, "step_size", problem.n_agents, steps)
    return c0, thresholds * (step_sizes / step_sizes.max()), step_sizes


def _values(value: Any, name: str, n: int, steps: int, *, allow_inf: bool = False) -> Floats:
    """Return the largest value of each agent over all steps, ``[n]``."""
    if callable(value):
        checks.count(steps, "steps", "certify")
        scheduled = np.array([_each(value(k), name, n) for k in range(steps)])
        if (scheduled < 0).any():
            raise ArgumentError(f"`{name}` of certify must never be negative, but the schedule is.")
        found = scheduled.max(axis=0)
    else:
        found = _each(value, name, n)
    if not ((found > 0).all() and (allow_inf or np.isfinite(found).all())):
        kind = "positive" if allow_inf else "positive and finite"
        raise ArgumentError(f"`{name}` of certify must be {kind}, but got {reprlib.repr(value)}.")
    return found


def _each(value: Any, name: str, n: int) -> Floats:
    """Return a number for every agent, ``[n]``, given one for all or one each."""
    try:
        return np.broadcast_to(np.asarray(value, float).reshape(-1), (n,)).astype(float)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"`{name}` of certify must be a number, or have one entry per agent ({n}), but got {reprlib.repr(value)}."
        ) from None


def _why_not(step_size: float | None, best: Proof | None) -> str:
    if step_size is None:
        return "no step is certified: where this start may lead, curvature has no usable bound; start nearer, or clip"
    if best is None:
        return "no storage was found for the curvatures of the region"
    return f"the largest certified step is {best.step_size:.4g}"


def _explained(start: Start, best: Proof, threshold: float) -> dict[str, Any]:
    """Return the upper end, what costs the difference, and certified steps at other thresholds."""
    found: dict[str, Any] = {}
    instance, losses, n = start.instance, start.losses, start.matrices.n
    stable = largest_stable_step(losses.problem, start.phases, first=best.step_size)
    alike = largest_stable_step(losses.problem, start.phases, first=best.step_size, scalar=True)
    if stable is not None and alike is not None:
        found["stable"] = stable
        if losses.constants is None:
            at_minimum = np.maximum(
                losses.curvature(losses.lower_bound, np.zeros(n), 0.0), best.curvature * 1e-12
            )
            local = instance.search.best(at_minimum).step_size
            found["costs"] = {
                "region (curvature on the way, not at the minimum)": local / best.step_size,
                "class (any losses of these curvatures, any clipping)": alike / local,
                "scalar L_i (as curved in every direction as in the steepest)": stable / alike,
            }
    if math.isfinite(threshold) and len(start.phases) == 1:
        setting, printed = largest_printed_step(
            losses.problem, instance.norms, threshold, start.x, losses.constants
        )
        found["printed"], found["setting"] = printed.step_size if printed else None, setting
    if math.isfinite(threshold) and n <= FEW:
        found["thresholds"] = {
            factor * threshold: step.step_size if step else None
            for factor in OTHER_THRESHOLDS
            for step in [largest(replace(start, reach=factor * start.reach))]
        }
    return found


def _check_at(points: Floats, instance: Instance, owner: str) -> None:
    """Refuse constants of the user that do not hold at the agents' estimates."""
    constants = instance.constants
    if constants is None or constants.source != "given":
        return
    # Norms from below, so that an excess is no rounding.
    seen = empirical_smoothness(instance.problem, points, max_points=10)
    bounds = constants.L0 + constants.L1 * seen.grad_norms
    excess = np.where(seen.hessian_norms > (1 + 1e-6) * bounds, seen.hessian_norms - bounds, 0.0)
    if excess.any():
        point, agent = np.unravel_index(excess.argmax(), excess.shape)
        raise ArgumentError(
            f"`smoothness` of {owner} must bound every Hessian norm, but for agent {agent} it gives "
            f"{bounds[point, agent]:.4g} at the start, where that norm is {seen.hessian_norms[point, agent]:.4g}; give "
            "a bound that you can prove, L1 too if the norm grows with the gradient."
        )


def _estimated(
    problem: Problem, network: Network, threshold: float, start: Floats, step_size: float | None
) -> Smoothness:
    step = EMPIRICAL_STEP_SIZE if step_size is None else step_size
    path = run(problem, network, step_size=step, threshold=threshold, x0=start, steps=EMPIRICAL_STEPS)
    return empirical_smoothness(problem, path.average).constants()
