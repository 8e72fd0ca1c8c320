"""The rows of the paper's proof, with the constants of the repaired chain or with the printed ones."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from digrad.theory import paper, pointwise, repaired
from digrad.theory.closure import Chain, Closed
from digrad.theory.measured import EPS, Measured, squared
from digrad.theory.rows import Row, Terms, terms
from digrad.theory.setting import scaled
from digrad.theory.sharp_rows import global_rows, usable_bound

Floats = npt.NDArray[np.floating]


def repaired_rows(run: Measured, closed: Closed) -> list[Row]:
    """Return the rows of the repaired chain; G is certified, or else measured."""
    k, given = _constants(run, closed, repaired)
    reach = run.setting.reach(run.path.step_size)
    is_close = scaled(math.sqrt(k["Cx"]), reach) >= run.setting.X0 and given.precondition == "met"
    near = terms(is_close, "g <= G, X0^2 <= Cx alpha^2 c0^2", given.grad_bound)
    level, change = (scaled(k.get(name, 0.0), reach * reach) for name in ("Cy", "C1"))
    decay = ((1 + k["sC"] ** 2) / 2) ** np.arange(run.path.steps + 1) * run.setting.Y0 * run.setting.Y0
    bound_x = max(run.setting.X0 * run.setting.X0, scaled(k["Cx"], reach * reach))
    return [
        Row(
            "unibound_x (A2, A3)", "repaired", run.X**2, np.full_like(run.X, bound_x), rounding=_x_noise(run)
        ),
        Row(
            "gradient difference C_1",
            "repaired",
            run.gradient_change**2,
            np.full(run.path.steps, change),
            near,
            _change_noise(run),
        ),
        Row("unibound_y (A1)", "repaired", run.Y**2, decay + level, near, _y_noise(run)),
        Row(
            "inner product (A4)", "repaired", *pointwise.inner_product(run.states), rounding=_slope_noise(run)
        ),
        Row(
            "quadratic term (C5)",
            "repaired",
            *pointwise.quadratic_term(run.states),
            rounding=16 * EPS * run.s**2,
        ),
        Row(
            "pre2a: step length (C6)",
            "repaired",
            *pointwise.step_length_printed(run.states),
            rounding=16 * EPS * run.s**2,
        ),
        *_recursions(run, k, given, "repaired", ("S1", "S2", "S4")),
        *global_rows(run, closed, "repaired"),
    ]


def paper_rows(run: Measured, closed: Closed) -> list[Row]:
    """Return the same rows with the printed constants: those with errata may FAIL although their conditions hold.

    The printed claims on G and on the sums need a threshold of at most 1/sqrt(K), as in the paper's theorem.
    """
    k, given = _constants(run, closed, paper)
    reach, steps = run.setting.reach(run.path.step_size), run.path.steps
    bound_x, bound_y, change = (scaled(k.get(name, 0.0), reach * reach) for name in ("Cx", "Cy", "C1"))
    claims = global_rows(run, closed, "paper")
    if run.setting.threshold * run.setting.threshold * steps > 1 + 1e-12:
        claims = [_inapplicable(row) for row in claims]
    return [
        Row("unibound_x", "paper", run.X**2, np.full_like(run.X, bound_x), rounding=_x_noise(run)),
        Row(
            "gradient difference C_1",
            "paper",
            run.gradient_change**2,
            np.full(steps, change),
            given,
            _change_noise(run),
        ),
        Row("unibound_y", "paper", run.Y**2, np.full_like(run.Y, bound_y), given, _y_noise(run)),
        Row(
            "inner product (temp10)",
            "paper",
            *pointwise.inner_product(run.states, printed=True),
            rounding=_slope_noise(run),
        ),
        *_recursions(run, k, given, "paper", ("C_1", "C_2", "C_4")),
        *claims,
    ]


def _constants(run: Measured, closed: Closed, chain: Chain) -> tuple[dict[str, float], Terms]:
    bound, label = usable_bound(run, closed)
    constants = chain.local_constants(run.setting, run.path.step_size, bound)
    return constants, terms(repaired.is_moderate(constants, run.path.step_size), "g <= G", label)


def _recursions(
    run: Measured, k: dict[str, float], given: Terms, chain: str, bounds: tuple[str, str, str]
) -> list[Row]:
    """Return the recursions (x) and (y) of Lemma 11 and the descent (d) of Lemma 12, as squares."""
    if given.precondition == "not met":
        shapes = {"x-recursion": run.X[1:] ** 2, "y-recursion": run.Y[1:] ** 2, "descent": run.descent}
        nothing = given._replace(needs="exp(c) finite")
        return [Row(name, chain, lhs, np.full_like(lhs, np.inf), nothing) for name, lhs in shapes.items()]
    a, n, uv = run.path.step_size, run.setting.n, run.setting.norms.uv
    reference = run.states.reference(run.setting.v_norm)
    X2, Y2, progress = run.X**2, run.Y**2, reference * run.g**2
    x_next = (1 + k["sR"] ** 2) / 2 * X2 + a**2 * k["Cx1"] * Y2 + a * k["Cx2"] * progress
    y_next = k["Cy1"] * X2 + (1 + k["sC"] ** 2) / 2 * Y2 + a * k["Cy2"] * progress

    def row(name: str, bound: str, lhs: Floats, rhs: Floats, first: int, rounding: Any) -> Row:
        granted = terms(a <= k[bound], f"g <= G, alpha <= {bound}", given.grad_bound)
        return Row(name, chain, lhs, rhs, granted, rounding, first)

    descent = uv / (3 * n) * progress[:-1] + run.descent
    errors = (reference * (k["P"] * Y2 + k["Q"] * X2))[:-1]
    return [
        row("x-recursion", bounds[0], X2[1:], x_next[:-1], 1, _x_noise(run)[1:]),
        row("y-recursion", bounds[1], Y2[1:], y_next[:-1], 1, _y_noise(run)[1:]),
        row("descent", bounds[2], descent, errors, 0, run.descent_rounding),
    ]


def _x_noise(run: Measured) -> Floats:
    return squared(run.X, run.x_rounding)


def _y_noise(run: Measured) -> Floats:
    return squared(run.Y, run.y_rounding)


def _change_noise(run: Measured) -> Floats:
    return squared(run.gradient_change, run.grad_rounding[1:])


def _slope_noise(run: Measured) -> Floats:
    """Return what rounding does to <grad F, move>."""
    return 16 * EPS * run.g * run.s


def _inapplicable(row: Row) -> Row:
    needs = f"{row.terms.needs}, c0 <= 1/sqrt(K)"
    return replace(row, terms=row.terms._replace(precondition="not met", needs=needs))
