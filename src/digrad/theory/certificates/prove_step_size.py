r"""The proof of a step size: curvature bounds that hold on the region to which they lead.

The potential of the start bounds where the average can go, :math:`F(\bar x_k) \le V_0/n`; this region bounds the
curvature; the curvature decides which step sizes have a storage function; and the storage function is part of the
potential. A step is certified if these bounds are consistent: with curvature L and storage P, both proven, the
curvature on the region of the resulting V_0 is at most L.
"""

import math

import numpy as np
import numpy.typing as npt

from digrad.theory.certificates.frequency_responses import Taps
from digrad.theory.certificates.instance import ROUNDED_UP, Start
from digrad.theory.certificates.linear_rate import contraction, is_contraction
from digrad.theory.certificates.proof import Proof
from digrad.theory.certificates.storage_function import EPS, prove_storages

Floats = npt.NDArray[np.floating]

DISTANCE = 0.02  # kept from the supremum of certified steps: storages explode there
KEPT = 0.005  # eps, of which V falls at least
WIDENED = 1.01  # by which curvature bounds grow when the region does
CLOSINGS = 25
TOLERANCE = 0.005  # relative, of the largest step
ATTEMPTS = 40
SMALLEST = 1e-15  # a step below this, in units of the inverse curvature of the start, is not sought
GROWN = (1.0, 1.1, 1.3)  # times the least curvatures: room for V to fall faster
ACCURACY = 0.01  # for which the number of steps is made small
SHALLOWEST = 2.0**-18  # of F_0 - f_inf: so deep at least F is strongly convex, or no rate is sought
DEPTHS = 4  # bisections for how deep it is
FEW = 30  # agents for which every pair of eps and slack is tried
FLATTEST = 1e-3  # of the largest curvature: no less is assumed, so that equations are solved better
PARTS = (1.0, 0.01)  # of that for the history, the second where the first enlarges the region too much
SLACKS = tuple(4.0**-k for k in range(1, 9))  # shares of D that |e_x|^2 may get


def close(start: Start, step_size: float) -> Proof | None:
    """Return the proof that a step is certified, or None."""
    found = _attempt(start, step_size)
    return found if isinstance(found, Proof) else None


def _attempt(start: Start, step_size: float) -> Proof | Taps | None:
    """Return a proof; else the taps at the curvature where it failed, a hint of what could be, or None without any.

    Agents stay near their average because clipped steps are short, or because V falls by |e_x|^2 too. The second is
    tried if the first does not suffice, for built-in losses: it needs them to be continued beyond the region.
    """
    found = None
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what is not finite is not certified
        if np.isfinite(start.reach).all() or start.losses.constants is not None:
            found = _close(start, step_size, slacks=(0.0,))
        if not isinstance(found, Proof) and start.losses.constants is None:
            other = _close(start, step_size, slacks=SLACKS)
            found = other if isinstance(other, Proof) or found is None else found
    return found


def _close(start: Start, step_size: float, slacks: tuple[float, ...]) -> Proof | Taps | None:
    value, error = start.base
    level = max((value + error) / start.matrices.n, start.level)
    width = start.spread if slacks[0] else start.spread + step_size * start.moved
    moved = start.instance.search.taps * step_size * float(start.reach.max())
    L = (1 + 2 * ROUNDED_UP) * start.losses.curvature(level, width, moved)
    for _ in range(CLOSINGS):
        if not np.isfinite(L).all() or not (L > 0).any():
            return None
        L = np.maximum(L, FLATTEST * L.max())
        proof = _prove(start, step_size, L, slacks)
        if isinstance(proof, Taps):
            return proof
        needed = start.needed(proof)
        if ((1 + ROUNDED_UP) * needed <= L).all():
            return proof
        L = np.maximum(L, WIDENED * needed)
    return None


def _prove(start: Start, step_size: float, L: Floats, slacks: tuple[float, ...]) -> Proof | Taps:
    """Return a proof for these curvatures with the first slack that has one, else taps that did not suffice."""
    search = start.instance.search
    for find in (lambda: search.reaching(L, step_size / (1 - DISTANCE)), lambda: search.best(L)):
        taps = find()
        if (1 - DISTANCE) * taps.step_size < step_size:
            return taps
        for share in slacks:
            asked = Proof(step_size, taps, L, start.losses.convex, KEPT, share * _least_ratio(start))
            if found := _complete(start, asked):
                return found
    return taps._replace(step_size=0.9 * step_size)


def _complete(start: Start, asked: Proof) -> Proof | None:
    """Return what is asked for with its storages, V_0 and E_i, rounded up; None if it has no storages.

    V_0 is at least n F of the average. That the region has no more than the assumed curvature is not checked.
    """
    storages = prove_storages(start.phases, asked, relative=start.instance.relative)
    if storages is None:
        return None
    n, lower_bound = start.matrices.n, start.losses.lower_bound
    potential = max(start.potential(asked.step_size, storages[0]), n * start.level)
    potential += ROUNDED_UP * max(0.0, potential - n * lower_bound)
    found = asked._replace(storages=storages, potential=potential, lower_bound=lower_bound)
    return found._replace(width=(1 + ROUNDED_UP) * start.width(found))


def _least_ratio(start: Start) -> float:
    return float(min(phase.ratio.min() for phase in start.phases))


def verify(start: Start, proof: Proof, shares: Floats) -> dict[str, bool]:
    """Return whether each claim of a proof holds, without any search; the storage by one Riccati equation.

    With a linear rate no step may be larger than the proven one.
    """
    taps, phases, lags = proof.taps, start.phases, np.arange(1, len(proof.taps.a) + 1)
    has_balance = (
        abs(lags @ (taps.a - taps.b) - 1) <= 8 * EPS * (lags @ (taps.a + taps.b)) or not proof.convex
    )
    is_admissible = bool((taps.a >= 0).all() and (taps.b >= 0).all()) and (len(lags) == 1 or len(phases) == 1)
    storages = prove_storages(phases, proof, relative=start.instance.relative)
    proof = proof._replace(storages=storages or ())
    return {
        "taps are admissible": is_admissible
        and bool(has_balance)
        and 0 < proof.kept < 1
        and min(proof.slack, proof.past) >= 0,
        "losses are convex, if the proof says so": start.losses.convex or not proof.convex,
        "Psi < 0": storages is not None,
        "V_0 is at most the potential": storages is not None
        and start.potential(proof.step_size, storages[0]) <= proof.potential,
        "F at the average start is at most the level": start.level <= proof.level,
        "F is at least its lower bound": proof.lower_bound <= start.losses.lower_bound,
        "agents stay within their widths": bool((start.width(proof) <= proof.width).all()),
        "L bounds the curvature of the region": bool((start.needed(proof) <= proof.curvature).all()),
        "V falls at the linear rate, if the proof has one": math.isinf(proof.contraction)
        or (
            storages is not None
            and bool((shares <= 1).all())
            and proof.modulus <= start.losses.strong_convexity(proof.depth)
            and is_contraction(phases, proof, shares, proof.contraction, relative=start.instance.relative)
        ),
    }


def strengthen(start: Start, proof: Proof, shares: Floats) -> Proof:
    """Return a proof of the same step under which V falls faster, so that fewer steps are promised; or the same."""
    phases = start.phases
    modulus, depth = _growth(start, proof)

    def rated(found: Proof) -> tuple[Proof, float | None]:
        found = found._replace(modulus=modulus, depth=depth)
        found = found._replace(
            contraction=contraction(phases, found, shares, relative=start.instance.relative)
        )
        return found, found.iterations(phases, start.reach, shares, ACCURACY)

    def stronger(L: Floats, kept: float, slack: float) -> Proof | None:
        for part in PARTS:
            found = _complete(start, proof._replace(kept=kept, slack=slack, past=part * slack, curvature=L))
            if found and ((1 + ROUNDED_UP) * start.needed(found) <= L).all():
                return found
        return None

    best, score = rated(proof)
    for grown in GROWN:
        room, before = 1 - proof.step_size * grown / proof.taps.step_size, score
        for kept in (room / 2, room / 4) if room > 0 else ():
            fewest = math.inf
            for share in SLACKS:
                found = stronger(grown * proof.curvature, kept, share * _least_ratio(start))
                if found is None:
                    continue
                found, count = rated(found)
                if count is None or count >= fewest:  # so has less slack
                    break
                fewest = count
                if score is None or count < score:
                    best, score = found, count
                    if start.matrices.n > FEW:
                        return best
        if score != before:
            break
    return best


def _growth(start: Start, proof: Proof) -> tuple[float, float]:
    """Return m and h with |grad F|^2 >= 2 m min(F - inf F, h), about the largest h that has one; m = 0 without any."""
    find, high = start.losses.strong_convexity, proof.level - proof.lower_bound
    low = SHALLOWEST * high
    for depth in (math.inf, high):
        if depth > 0 and (modulus := find(depth)) > 0:
            return modulus, depth
    if low <= 0 or not (modulus := find(low)):
        return 0.0, math.inf
    for _ in range(DEPTHS):
        middle = math.sqrt(low * high)
        if (found := find(middle)) > 0:
            modulus, low = found, middle
        else:
            high = middle
    return modulus, low


def largest(start: Start) -> Proof | None:
    """Return the proof of the largest certified step, to a relative TOLERANCE, or None."""
    value, error = start.base
    L = start.losses.curvature((value + error) / start.matrices.n, start.spread, 0.0)
    if not np.isfinite(L).all() or not (L > 0).any():
        return None
    first = start.instance.search.best(np.maximum(L, FLATTEST * L.max())).step_size
    low, high, step = 0.0, math.inf, (1 - 1.01 * DISTANCE) * first
    best: Proof | None = None
    for _ in range(ATTEMPTS):
        found = _attempt(start, step)
        if isinstance(found, Proof):
            best, low = found, step
            step = low * (1 + 2 * TOLERANCE) if math.isinf(high) else math.sqrt(low * high)
        else:
            high = step
            hint = found.step_size if found else 0.0
            step = math.sqrt(low * high) if low else min(max(hint, high / 8), high / 1.3)
        if low and high <= low * (1 + TOLERANCE):
            break
        if not low and high < SMALLEST * first:
            return None
    return best
