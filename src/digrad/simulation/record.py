"""Rows of a trace: what the loop has recorded, with loss and gradient evaluated in batches."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from digrad import metrics
from digrad.arrays import row_norm
from digrad.core.net import bindings
from digrad.core.traffic import PacketTraffic, Traffic
from digrad.problems import LossCode
from digrad.simulation.loop import Buffer, row_number

Rows = dict[str, npt.NDArray[Any]]  # columns by name

# Points evaluated in one product. Record number j always sits in column j mod GROUP of a product of this one
# width, so that its rounding does not depend on the chunk length.
GROUP = 25

FLOATS = ("loss", "grad_norm", "consensus_error", "tracking_error", "fraction_clipped")


def recorded(first: int, end: int, every: int) -> npt.NDArray[np.int64]:
    """Return which of the iterations first, ..., end - 1 are recorded."""
    return np.arange(row_number(first, every) * every, end, every)


def end_of_room(first: int, every: int, rows: int) -> int:
    """Return the iteration from which a buffer of ``rows`` rows, begun at ``first``, has no room."""
    return (row_number(first, every) + rows) * every


def rows_of(
    ks: npt.NDArray[np.int64],
    buffer: Buffer,
    loss: npt.NDArray[np.float64],
    grad_norm: npt.NDArray[np.float64],
    traffic: Traffic | PacketTraffic,
) -> Rows:
    """Return the columns of the iterations ``ks``, whose rows of a buffer are on the host.

    Estimates of all agents are one column ``x`` ``[rows, n, d]``; see :func:`columns_of`.
    """
    found: dict[str, Any] = {
        "k": ks,
        "loss": loss,
        "grad_norm": grad_norm,
        "consensus_error": buffer.consensus_error,
        "tracking_error": buffer.tracking_error,
        "fraction_clipped": buffer.fraction_clipped,
        "bytes_sent": traffic.before(ks),
        **(buffer.kept or {}),
        **traffic.columns(ks),
        **(buffer.packets or {}),  # whose mass error counts what is under way
    }
    for name in ("loss", "grad_norm"):  # always measured: NaN has overflowed on the way
        found[name] = np.where(np.isnan(found[name]), np.inf, found[name])
    whole = ("k", "bytes_sent")
    return {
        name: np.asarray(column, np.int64 if name in whole else np.float64) for name, column in found.items()
    }


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts, in order."""
    filled = [part for part in parts if part]
    if len(filled) < 2:
        return filled[0] if filled else {}
    return {name: np.concatenate([part[name] for part in filled]) for name in filled[0]}


def before(rows: Rows, k: int) -> Rows:
    """Return the rows of the iterations before k."""
    return {name: column[rows["k"] < k] for name, column in rows.items()}


def columns_of(rows: Rows) -> Rows:
    """Return rows as the columns of a trace, each of one number per row."""
    found = {name: column for name, column in rows.items() if name != "x"}
    if "x" in rows:
        found |= {f"x[{i}][{j}]": rows["x"][:, i, j] for i, j in np.ndindex(rows["x"].shape[1:])}
    return found


def is_within(rows: Rows, tolerance: float) -> npt.NDArray[np.bool_]:
    """Return which rows have gradient norm and consensus error both within ``tolerance``.

    Where mass may be under way, trackers that vanish prove nothing: what is undelivered must vanish too.
    """
    good = (rows["grad_norm"] <= tolerance) & (rows["consensus_error"] <= tolerance)
    if "in_transit" in rows and np.isfinite(rows["tracking_error"]).all():
        good &= rows["in_transit"] <= tolerance
    return good


def first_rows(buffer: Buffer, count: int) -> Buffer:
    """Return the first rows, on the host."""
    return jax.tree.map(lambda column: np.asarray(column)[:count], buffer)


def evaluate_many(
    losses: LossCode,
    arrays: Any,
    points: npt.NDArray[Any],
    row: int = 0,
    present: npt.NDArray[np.bool_] | None = None,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return F and the norm of its gradient at any number of points, the first of which is that of row ``row``."""
    if not len(points):
        return np.zeros(0), np.zeros(0)
    before = row % GROUP
    padded = np.zeros((-(-(before + len(points)) // GROUP) * GROUP, points.shape[1]), points.dtype)
    padded[before : before + len(points)] = points
    parts = [evaluate(losses, arrays, group, present) for group in padded.reshape(-1, GROUP, points.shape[1])]
    loss, grad_norm = (np.concatenate([np.asarray(part[i], np.float64) for part in parts]) for i in (0, 1))
    return loss[before : before + len(points)], grad_norm[before : before + len(points)]


@cache  # the loop is compiled once per function
def observer(*, paths: bool, invariant: bool) -> Callable[..., dict[str, jax.Array]] | None:
    """Return what keeps of an iteration the estimates of all agents and the residual of the invariant, if wanted."""
    if not (paths or invariant):
        return None

    def keep(method: Any, before: Any, after: Any, grad: Any) -> dict[str, jax.Array]:
        found = {"x": method.estimate(before)} if paths else {}
        tracker = tracker_of(method, after)
        if invariant and tracker is not None:
            found["mass_error"] = metrics.mass_error(tracker, after.g)
        return found

    return keep


def tracker_of(method: Any, state: Any) -> Any:
    """Return what a method tracks its gradients g with, if it mixes so that sums stay; else None."""
    if not hasattr(state, "g") or not {"C", "W"} & set(bindings(method).values()):
        return None
    return next((getattr(state, name) for name in ("s", "y", "v") if hasattr(state, name)), None)


@partial(jax.jit, static_argnums=0)
def evaluate(
    losses: LossCode, arrays: Any, points: jax.Array, present: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Return F and the norm of its gradient at ``points``, ``[K]`` each; F of the agents present, if not of all."""
    if present is None:
        loss, gradient = losses.objective(arrays, points)
    else:
        loss, gradient = jax.lax.map(partial(_objective_of, losses, arrays, present), points)
    norm = jnp.linalg.norm(gradient, axis=-1)
    is_overflow = jnp.isinf(norm) & jnp.isfinite(gradient).all(axis=-1)  # of the squares only
    return loss, jnp.where(is_overflow, row_norm(gradient)[:, 0], norm)


def _objective_of(
    losses: LossCode, arrays: Any, present: jax.Array, point: jax.Array
) -> tuple[jax.Array, jax.Array]:
    everywhere = jnp.broadcast_to(point, (len(present), len(point)))
    weights = present / present.sum()
    return weights @ losses.losses(arrays, everywhere, None), weights @ losses.gradients(
        arrays, everywhere, None
    )
