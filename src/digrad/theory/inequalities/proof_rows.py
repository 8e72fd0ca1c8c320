"""The rows of the paper's proof, with the constants of the repaired chain or with the printed ones."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from digrad.theory.chains import paper, repaired
from digrad.theory.chains.closure import Chain, Closed
from digrad.theory.chains.setting import scaled
from digrad.theory.inequalities import pointwise
from digrad.theory.inequalities.measured import EPS, Measured, squared
from digrad.theory.inequalities.rows import Row, Terms, terms
from digrad.theory.inequalities.sharp_rows import global_rows, usable_bound

Floats = npt.NDArray[np.floating]


class UniformBounds(NamedTuple):
    """Bounds of squares along a whole run, in units of (alpha c0)^2; beyond double precision only the first."""

    Cx: float  # of X^2
    Cy: float = 0.0  # of Y^2
    C1: float = 0.0  # of ||grad f(x_{k+1}) - grad f(x_k)||^2


def uniform_bounds(k: dict[str, float]) -> UniformBounds:
    """Return those of the constants of a chain that bound a square along the whole run."""
    return UniformBounds(**{name: k[name] for name in UniformBounds._fields if name in k})


def repaired_rows(measured: Measured, closed: Closed) -> list[Row]:
    """Return the rows of the repaired chain; G is certified, or else measured."""
    k, given = _constants(measured, closed, repaired)
    reach = measured.setting.reach(measured.path.step_size)
    is_close = scaled(math.sqrt(k["Cx"]), reach) >= measured.setting.X0 and given.precondition == "met"
    near = terms(is_close, "g <= G, X0^2 <= Cx alpha^2 c0^2", given.grad_bound)
    level, change = (scaled(bound, reach * reach) for bound in uniform_bounds(k)[1:])
    decay = (
        ((1 + k["sC"] ** 2) / 2) ** np.arange(measured.path.steps + 1)
        * measured.setting.Y0
        * measured.setting.Y0
    )
    bound_x = max(measured.setting.X0 * measured.setting.X0, scaled(k["Cx"], reach * reach))
    return [
        Row(
            "unibound_x (A2, A3)",
            "repaired",
            measured.X**2,
            np.full_like(measured.X, bound_x),
            rounding=_x_noise(measured),
        ),
        Row(
            "gradient difference C_1",
            "repaired",
            measured.gradient_change**2,
            np.full(measured.path.steps, change),
            near,
            _change_noise(measured),
        ),
        Row("unibound_y (A1)", "repaired", measured.Y**2, decay + level, near, _y_noise(measured)),
        Row(
            "inner product (A4)",
            "repaired",
            *pointwise.inner_product(measured.states),
            rounding=_slope_noise(measured),
        ),
        Row(
            "quadratic term (C5)",
            "repaired",
            *pointwise.quadratic_term(measured.states),
            rounding=16 * EPS * measured.s**2,
        ),
        Row(
            "pre2a: step length (C6)",
            "repaired",
            *pointwise.step_length_printed(measured.states),
            rounding=16 * EPS * measured.s**2,
        ),
        *_recursions(measured, k, given, "repaired", ("S1", "S2", "S4")),
        *global_rows(measured, closed, "repaired"),
    ]


def paper_rows(measured: Measured, closed: Closed) -> list[Row]:
    """Return the same rows with the printed constants: those with errata may FAIL although their conditions hold.

    The printed claims on G and on the sums need a threshold of at most 1/sqrt(K), as in the paper's theorem.
    """
    k, given = _constants(measured, closed, paper)
    reach, steps = measured.setting.reach(measured.path.step_size), measured.path.steps
    bound_x, bound_y, change = (scaled(bound, reach * reach) for bound in uniform_bounds(k))
    claims = global_rows(measured, closed, "paper")
    if measured.setting.threshold * measured.setting.threshold * steps > 1 + 1e-12:
        claims = [_inapplicable(row) for row in claims]
    return [
        Row(
            "unibound_x",
            "paper",
            measured.X**2,
            np.full_like(measured.X, bound_x),
            rounding=_x_noise(measured),
        ),
        Row(
            "gradient difference C_1",
            "paper",
            measured.gradient_change**2,
            np.full(steps, change),
            given,
            _change_noise(measured),
        ),
        Row(
            "unibound_y", "paper", measured.Y**2, np.full_like(measured.Y, bound_y), given, _y_noise(measured)
        ),
        Row(
            "inner product (temp10)",
            "paper",
            *pointwise.inner_product(measured.states, printed=True),
            rounding=_slope_noise(measured),
        ),
        *_recursions(measured, k, given, "paper", ("C_1", "C_2", "C_4")),
        *claims,
    ]


def _constants(measured: Measured, closed: Closed, chain: Chain) -> tuple[dict[str, float], Terms]:
    bound, label = usable_bound(measured, closed)
    constants = chain.local_constants(measured.setting, measured.path.step_size, bound)
    return constants, terms(repaired.is_moderate(constants, measured.path.step_size), "g <= G", label)


def _recursions(
    measured: Measured, k: dict[str, float], given: Terms, chain: str, bounds: tuple[str, str, str]
) -> list[Row]:
    """Return the recursions (x) and (y) of Lemma 11 and the descent (d) of Lemma 12, as squares."""
    if given.precondition == "not met":
        shapes = {
            "x-recursion": measured.X[1:] ** 2,
            "y-recursion": measured.Y[1:] ** 2,
            "descent": measured.descent,
        }
        nothing = given._replace(needs="exp(c) finite")
        return [Row(name, chain, lhs, np.full_like(lhs, np.inf), nothing) for name, lhs in shapes.items()]
    a, n, uv = measured.path.step_size, measured.setting.n, measured.setting.norms.uv
    reference = measured.states.reference(measured.setting.v_norm)
    X2, Y2, progress = measured.X**2, measured.Y**2, reference * measured.g**2
    x_next = (1 + k["sR"] ** 2) / 2 * X2 + a**2 * k["Cx1"] * Y2 + a * k["Cx2"] * progress
    y_next = k["Cy1"] * X2 + (1 + k["sC"] ** 2) / 2 * Y2 + a * k["Cy2"] * progress

    def row(name: str, bound: str, lhs: Floats, rhs: Floats, first: int, rounding: Any) -> Row:
        granted = terms(a <= k[bound], f"g <= G, alpha <= {bound}", given.grad_bound)
        return Row(name, chain, lhs, rhs, granted, rounding, first)

    descent = uv / (3 * n) * progress[:-1] + measured.descent
    errors = (reference * (k["P"] * Y2 + k["Q"] * X2))[:-1]
    return [
        row("x-recursion", bounds[0], X2[1:], x_next[:-1], 1, _x_noise(measured)[1:]),
        row("y-recursion", bounds[1], Y2[1:], y_next[:-1], 1, _y_noise(measured)[1:]),
        row("descent", bounds[2], descent, errors, 0, measured.descent_rounding),
    ]


def _x_noise(measured: Measured) -> Floats:
    return squared(measured.X, measured.x_rounding)


def _y_noise(measured: Measured) -> Floats:
    return squared(measured.Y, measured.y_rounding)


def _change_noise(measured: Measured) -> Floats:
    return squared(measured.gradient_change, measured.grad_rounding[1:])


def _slope_noise(measured: Measured) -> Floats:
    """Return what rounding does to <grad F, move>."""
    return 16 * EPS * measured.g * measured.s


def _inapplicable(row: Row) -> Row:
    needs = f"{row.terms.needs}, c0 <= 1/sqrt(K)"
    return replace(row, terms=row.terms._replace(precondition="not met", needs=needs))
