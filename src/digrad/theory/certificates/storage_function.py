r"""The storage function behind a certified step size, and the proof that it falls.

The state is :math:`\sigma = (a, b, d_1, \dots, d_{J-1}, h_1, \dots, h_{J-1})` with :math:`e_x = \alpha M a`,
:math:`e_y = N b`, :math:`x_k - x_{k-j} = \alpha d_j` and :math:`g_k - g_{k-j} = h_j`; the inputs are the clipped
trackers p and the changes of the gradients q. A step is certified if a symmetric P exists for which

.. math::
    \Psi(\sigma, p, q) = F(\sigma, p, q) + \sigma_+' P \sigma_+ - \sigma' P \sigma \le 0,

F being the form of :func:`supply`. P comes from one Riccati equation and needs no sign. That :math:`\Psi < 0` is
proved in floating point: every entry is computed together with the sum of the magnitudes of its terms, which bounds its
rounding, and Cholesky's algorithm completes for :math:`-\Psi` minus all that rounding can be (Rump's test).

Reference: S. M. Rump, Verification of positive definiteness, BIT 46, 2006.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import linalg

from digrad.theory.certificates.frequency_responses import Matrices, product
from digrad.theory.certificates.proof import Proof
from digrad.theory.constants.closed_form import OUTWARD

Floats = npt.NDArray[np.floating]

EPS = float(np.finfo(np.float64).eps)
DOUBLINGS = 22  # four million steps ahead; where P exists, up to 16 were seen to be needed
SETTLED = 1e-14  # relative change of P at which doubling ends
MARGINS = (1e-8, 1e-6)  # asked for beyond Psi <= 0; the second where rounding is larger than the first
DEPTH = 16  # roundings on the way to an entry of Psi, sums apart: more than :func:`supply` has


@dataclass(frozen=True, eq=False)
class Bounded:
    """An array and the sums of the magnitudes of the terms that were added up for its entries."""

    value: Floats
    size: Floats

    @classmethod
    def exact(cls, value: Any) -> "Bounded":
        """Return numbers that are what they are, or off by a few units of their last place."""
        array = np.asarray(value, np.float64)
        return cls(array, np.abs(array))

    @classmethod
    def stack(cls, rows: "Sequence[Bounded]") -> "Bounded":
        """Return arrays on top of each other."""
        return cls(np.vstack([row.value for row in rows]), np.vstack([row.size for row in rows]))

    @property
    def T(self) -> "Bounded":  # noqa: N802
        """The transpose."""
        return Bounded(self.value.T, self.size.T)

    def __add__(self, other: "Bounded") -> "Bounded":
        return Bounded(self.value + other.value, self.size + other.size)

    def __sub__(self, other: "Bounded") -> "Bounded":
        return Bounded(self.value - other.value, self.size + other.size)

    def __matmul__(self, other: "Bounded") -> "Bounded":
        return Bounded(self.value @ other.value, self.size @ other.size)

    def times(self, factor: float, size: float = 0.0) -> "Bounded":
        """Return all entries times a number, itself a sum of terms of that ``size``."""
        return Bounded(factor * self.value, max(abs(factor), size) * self.size)


Term: TypeAlias = tuple[Bounded, Bounded, float, float]  # left'right, a factor, and its size if rounded


class Supply(NamedTuple):
    """One step as a linear map, and the form without P: sigma+ = step (sigma, p, q)."""

    step: Bounded  # [states, states + 2 n]
    form: Bounded  # [states + 2 n, states + 2 n]
    scale: Floats  # [states + 2 n] powers of 2: the units in which all coordinates are alike


def supply(matrices: Matrices, proof: Proof) -> Supply:
    """Return the form F of which the storage must make a negative one, and the step, for what a proof asks."""
    n, k, count, L = matrices.n, matrices.n - 1, len(proof.taps.a), proof.curvature
    a, b, *past, p, q = stacked([k, k, *[n] * (2 * count - 2), n, n])
    x_past, g_past = past[: count - 1], past[count - 1 :]
    R, C, D, unit = map(Bounded.exact, (matrices.R, matrices.C, np.diag(matrices.ratio), np.eye(n)))
    onto_R, onto_C = unit - mean_of(matrices.next_u), unit - mean_of(matrices.next_v).T
    to_x, to_y = bases(matrices)
    ex, ey = to_x @ a, to_y @ b
    dx = (R - unit) @ ex - p
    ex_next = R @ ex - onto_R @ p  # u' e_x = 0, so that R and R - 1 u'/n do the same to it
    ey_next = C @ ey + onto_C @ q
    d, h = [dx, *(each + dx for each in x_past)], [q, *(each + q for each in g_past)]
    terms: list[Term] = [(p, D @ p, proof.kept - 1, 0.0), (p, D @ ey, 1.0, 0.0), (ex, ex, proof.slack, 0.0)]
    terms += history(x_past, g_past, proof)
    if proof.convex:
        before = [ex, *(ex_next - onto_R @ each for each in d[1:])]  # where u has changed, there is one tap
        terms += _interpolation(matrices, proof, p, before, d, h)
    else:
        tau, inverse = float(proof.taps.b[0]), Bounded.exact(np.diag(1 / L))
        terms.append((q, ex_next, -1.0, 0.0))
        terms.append((q, inverse @ q, -tau / proof.step_size, 0.0))
        terms.append((dx, Bounded.exact(np.diag(L)) @ dx, proof.step_size * (0.5 + tau), 0.0))
    after = [first_rows(ex_next, k), first_rows(ey_next, k), *d[:-1], *h[:-1]]
    # In units of p, gradients change by (alpha L)^.5 and iterates by its inverse while V changes by about one.
    units = np.exp2(np.round(np.log2(proof.step_size * L) / 2))
    mean = np.full(k, np.exp2(np.round(np.log2(proof.step_size * np.median(L)) / 2)))
    apart = np.tile(units, count - 1)
    scale = np.concatenate([1 / mean, mean, 1 / apart, apart, np.ones(n), units])
    return Supply(Bounded.stack(after), form_of(terms), scale)


def _interpolation(
    matrices: Matrices, proof: Proof, p: Bounded, before: list[Bounded], d: list[Bounded], h: list[Bounded]
) -> list[Term]:
    """Return the terms of convex losses: ``before`` holds e_x j steps ago, d and h the changes since then."""
    taps, n, alpha = proof.taps, matrices.n, proof.step_size
    u, one = Bounded.exact(matrices.next_u[None]), Bounded.exact(np.ones((1, n)))
    inverse = Bounded.exact(np.diag(1 / proof.curvature))
    # a_1 bears the rounding of sum_j j c_j = 1, which is relative to this.
    total = float(np.arange(1, len(taps.a) + 1) @ (taps.a + taps.b))
    terms: list[Term] = [(u @ p, one @ h[0], -1 / n, 0.0)]
    for weight, near, here, far in zip(proof.later[1:], h, d, d[1:], strict=False):
        terms.append((one @ near, u @ (far - here), float(weight) / n, total / n))
    for a_j, b_j, apart, moved, changed in zip(taps.a, taps.b, before, d, h, strict=True):
        terms.append((changed, apart, float(b_j - a_j), total))
        terms.append((changed, moved, float(b_j), total))
        terms.append((changed, inverse @ changed, -float(a_j + b_j) / (2 * alpha), total / (2 * alpha)))
    return terms


def history(x_past: Sequence[Bounded], g_past: Sequence[Bounded], proof: Proof) -> list[Term]:
    """Return s' sum_j (alpha d_j'L d_j + h_j'L^-1 h_j/alpha), by which V falls too."""
    L, inverse = (Bounded.exact(np.diag(each)) for each in (proof.curvature, 1 / proof.curvature))
    terms: list[Term] = [(each, L @ each, proof.past * proof.step_size, 0.0) for each in x_past]
    return [*terms, *((each, inverse @ each, proof.past / proof.step_size, 0.0) for each in g_past)]


def mean_of(weights: Floats) -> Bounded:
    """Return 1 w'/n, which puts the average in the place of every agent."""
    return Bounded.exact(np.tile(weights / len(weights), (len(weights), 1)))


def stacked(sizes: Sequence[int]) -> list[Bounded]:
    """Return the coordinates of a stacked vector as linear forms, in parts of these sizes."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    identity = np.eye(offsets[-1])
    return [Bounded.exact(identity[begin:end]) for begin, end in pairwise(offsets)]


def form_of(terms: Iterable[Term]) -> Bounded:
    """Return the symmetric matrix of a sum of products of linear forms."""
    found = None
    for left, right, factor, size in terms:
        product = (left.T @ right).times(factor / 2, size / 2)
        both = product + product.T
        found = both if found is None else found + both
    assert found is not None
    return found


def prove_storages(phases: Sequence[Matrices], proof: Proof, *, relative: float) -> tuple[Floats, ...] | None:
    """Return the storage before each step of a period if Psi < 0 is proved at all of them, else None.

    Args:
        phases: The matrices of the steps.
        proof: What is asked; on a changing network with one tap.
        relative: How far the entries of R, C, u and v may be from exact ones, relatively.
    """
    forms = [supply(phase, proof) for phase in phases]
    for margin in MARGINS:
        found = find_storages(forms, margin)
        if found is None:
            break
        pairs = zip(forms, found, (*found[1:], found[0]), strict=True)
        if all(is_negative(form, P, after, relative=relative) for form, P, after in pairs):
            return found
    return None


def find_storages(phases: Sequence[Supply], margin: float = 1e-8) -> tuple[Floats, ...] | None:
    """Return P before each step of a period, or None where the Riccati equation has no stabilizing solution.

    A period is one long step with the inputs of all of its steps; its storage is that before the first step, from which
    the others follow backwards: each is the most that the rest of the period can take out.

    Args:
        phases: The form and the step of each step.
        margin: By which more than Psi <= 0 is asked for, relative to the form.
    """
    states, scale = len(phases[0].step.value), phases[0].scale
    if not states:
        return (np.zeros((0, 0)),) * len(phases)
    forms, steps = [], []
    for one in phases:
        form = scale[:, None] * one.form.value * scale
        forms.append(form + margin * np.abs(form).max() * np.eye(len(form)))
        steps.append(one.step.value * scale / scale[:states, None])
    inputs = len(scale) - states
    state = np.eye(states, states + inputs * len(phases))
    total = np.zeros((state.shape[1],) * 2)
    for k, (form, step) in enumerate(zip(forms, steps, strict=True)):
        both = np.vstack([state, np.eye(inputs, state.shape[1], states + k * inputs)])
        total += both.T @ form @ both
        state = step @ both
    try:
        found = [_riccati(state[:, :states], state[:, states:], total)]
        for form, step in zip(forms[:0:-1], steps[:0:-1], strict=True):
            rest = form + step.T @ found[0] @ step
            cross = rest[:states, states:]
            found.insert(0, rest[:states, :states] - cross @ np.linalg.solve(rest[states:, states:], cross.T))
    except linalg.LinAlgError:
        return None
    found = [found[-1], *found[:-1]]
    return tuple((P + P.T) / 2 / scale[:states] / scale[:states, None] for P in found)


def _riccati(A: Floats, B: Floats, form: Floats) -> Floats:
    """Return P that makes the form plus sigma+'P sigma+ - sigma'P sigma least in (p, q), by doubling.

    Doubling looks 1, 2, 4, ... steps ahead, so that some twenty rounds suffice unless the step is the largest one.

    Reference: E. Chu, H. Fan, W. Lin and C. Wang, Structure-preserving algorithms for periodic discrete-time algebraic
        Riccati equations, International Journal of Control 77, 2004.

    Raises:
        LinAlgError: It does not settle.
    """
    k = len(A)
    cross = np.linalg.solve(form[k:, k:], np.hstack([form[k:, :k], B.T]))
    ahead, moved = A - B @ cross[:, :k], B @ cross[:, k:]
    stored = form[:k, :k] - form[:k, k:] @ cross[:, :k]
    for _ in range(DOUBLINGS):
        solved = np.linalg.solve(np.eye(k) + moved @ stored, np.hstack([ahead, moved]))
        step, push = solved[:, :k], solved[:, k:]
        added = ahead.T @ stored @ step
        stored, moved, ahead = stored + (added + added.T) / 2, moved + ahead @ push @ ahead.T, ahead @ step
        size = float(np.abs(stored).max())
        if not np.isfinite(size):
            break
        if float(np.abs(added).max()) <= SETTLED * size:
            return stored
    raise linalg.LinAlgError("the Riccati equation has no stabilizing solution")


def is_negative(found: Supply, P: Floats, after: Floats, *, relative: float) -> bool:
    """Return whether Psi < 0 is proved, for all matrices that differ from these by rounding.

    Args:
        found: The form and the step.
        P: The storage before the step, taken as exact.
        after: The storage after it; the same on a fixed network.
        relative: How far the entries of R, C, u and v may be from exact ones, relatively.
    """
    states = len(P)
    pulled = found.step.T @ Bounded.exact(after) @ found.step
    psi, size = found.form.value + pulled.value, found.form.size + pulled.size
    psi[:states, :states] -= P
    size[:states, :states] += np.abs(P)
    return is_negative_form(Bounded(psi, size), found.scale, relative=relative)


def is_negative_form(form: Bounded, scale: Floats, *, relative: float) -> bool:
    """Return whether a form is proved to be negative.

    Args:
        form: With entries that are sums of products of at most DEPTH numbers, over at most 3 m terms each time.
        scale: Powers of 2: the units in which all coordinates are alike.
        relative: How far the numbers it is made of may be from exact ones, relatively.
    """
    m = len(scale)
    psi = scale[:, None] * (form.value + form.value.T) / 2 * scale  # exact, and as definite
    size = scale[:, None] * form.size * scale
    radius = ((DEPTH + 6 * m) * EPS + DEPTH * relative) * float(size.sum(axis=1).max())
    gamma = (m + 2) * EPS
    shift = 1.1 * (radius + gamma / (1 - gamma) * float(np.trace(np.abs(psi))))
    if not np.isfinite(shift):  # nor is a number then
        return False
    try:
        linalg.cholesky(-psi - shift * np.eye(m), lower=True)
    except linalg.LinAlgError:
        return False
    return True


def form_bound(P: Floats, rows: Floats, slips: Floats) -> float:
    """Return an upper bound of sum_d rows_d'P rows_d for rows ``[m, d]`` that may be off by ``slips`` ``[m]``."""
    lengths, sizes = np.linalg.norm(rows, axis=1), np.abs(P)
    longest = lengths + slips
    least = (1 - OUTWARD) * float(lengths @ sizes @ lengths)
    return float(np.sum(rows * (P @ rows))) + (1 + OUTWARD) * float(longest @ sizes @ longest) - least


def perron_error(phases: Sequence[Matrices]) -> float:
    """Return how far the u and v of a period are from those of exactly stochastic matrices, relatively, at most.

    Exact are the stored ones with rows, or columns, divided by their sums, which a network allows to be off by 1e-10.
    All others follow from the first u and v by products of nonnegative numbers.
    """
    R, C = product([phase.R for phase in phases]), product([phase.C for phase in phases])
    first, count = phases[0], len(phases)
    sums = np.concatenate([each for phase in phases for each in (phase.R.sum(axis=1), phase.C.sum(axis=0))])
    rounding = 2 * (count - 1) * len(R) * EPS + count * float(np.abs(sums - 1).max())  # of the products
    found = max(_vector_error(R.T, first.u, rounding), _vector_error(C, first.v, rounding))
    return found + rounding + 2 * len(R) * EPS


def _vector_error(M: Floats, u: Floats, rounding: float) -> float:
    """Bound |u - exact|/u for M u = u and a sum of n: through an approximate inverse of the bordered system."""
    n = len(u)
    A = M - np.eye(n)
    A[-1] = 1.0
    exact, long = M.astype(np.longdouble), u.astype(np.longdouble)
    off = 2 * n * float(np.finfo(np.longdouble).eps) + 4 * EPS + rounding
    residual = np.abs(exact @ long - long).astype(float) + off * (np.abs(M) @ np.abs(u) + np.abs(u))
    residual[-1] = abs(u.sum() - n) + n * EPS * np.abs(u).sum()
    worst = solution_error(A, residual, rounding)
    return worst / float(u.min() - worst) if worst < u.min() else np.inf


def solution_error(A: Floats, residual: Floats, relative: float) -> float:
    """Bound the error of every entry of a solution of A x = b by its residual, through an approximate inverse.

    Args:
        A: ``[n, n]``, whose entries may be off by ``relative``.
        residual: An upper bound of |b - A x|, ``[n]``.
        relative: Relative errors of the entries of A.
    """
    inverse = np.linalg.inv(A)
    defect = float(np.abs(np.eye(len(A)) - inverse @ A).sum(axis=1).max())
    defect += 2 * (relative + 2 * len(A) * EPS) * float((np.abs(inverse) @ np.abs(A)).sum(axis=1).max())
    return float((np.abs(inverse) @ residual).max()) / (1 - defect) if defect < 0.5 else np.inf


def bases(matrices: Matrices) -> tuple[Bounded, Bounded]:
    """Return maps onto u' e = 0 and 1' e = 0 that leave out the last agent."""
    k = matrices.n - 1
    last = -matrices.u[None, :k] / matrices.u[-1]
    return tuple(Bounded.exact(np.vstack([np.eye(k), row])) for row in (last, -np.ones((1, k))))  # pyright: ignore[reportReturnType]


def first_rows(of: Bounded, count: int) -> Bounded:
    """Return the rows that are kept."""
    return Bounded(of.value[:count], of.size[:count])
