"""What a run has recorded so far: rows from the loop, with loss and gradient evaluated in batches."""

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
from digrad.core.packets import PACKET_COLUMNS, PacketTraffic
from digrad.core.traffic import Traffic
from digrad.problems import LossCode
from digrad.simulation.loop import Rows

# Points evaluated in one product. Record number j always sits in column j mod GROUP of a product of this one
# width, so that its rounding does not depend on the chunk length.
GROUP = 25

FLOATS = ("loss", "grad_norm", "consensus_error", "tracking_error", "fraction_clipped")


class Recorder:
    """Collects the columns of a trace.

    Args:
        losses: The losses, and
        arrays: their arrays on the device.
        traffic: What all agents together send.
        paths: ``(n, d)`` if the rows hold the estimates of all agents, and
        invariant: whether they hold the residual of the invariant, as a function of :func:`observer` keeps them.
    """

    def __init__(
        self,
        losses: LossCode,
        arrays: Any,
        traffic: Traffic | PacketTraffic,
        *,
        paths: tuple[int, ...] | None = None,
        invariant: bool = False,
    ) -> None:
        self._paths = [f"x[{i}][{j}]" for i, j in np.ndindex(*paths)] if paths else []
        self._losses, self._arrays, self._traffic = losses, arrays, traffic
        self.present: npt.NDArray[np.bool_] | None = None  # whose losses count, where agents go and come
        names = ("k", *FLOATS, "bytes_sent")
        is_fated = isinstance(traffic, PacketTraffic)  # whose mass error counts what is under way
        self._invariant = invariant and not is_fated
        names += (*self._paths, *(("mass_error",) if self._invariant else ()))
        names += ("delivered", "overtaken", *PACKET_COLUMNS) if is_fated else ()
        self._times = traffic.times if isinstance(traffic, PacketTraffic) else None
        names += ("seconds_simulated",) if self._times else ()
        self.columns = {
            name: np.zeros(0, np.int64 if name in ("k", "bytes_sent") else np.float64) for name in names
        }

    def append(self, ks: Sequence[int] | npt.NDArray[np.int64], rows: Rows) -> None:
        """Add the first ``len(ks)`` rows, which were recorded at iterations ``ks``."""
        kept, done = first_rows(rows, len(ks)), len(self.columns["k"])
        self.extend(ks, kept, *self._evaluate(kept.point, done))

    def extend(
        self, ks: Sequence[int] | npt.NDArray[np.int64], kept: Rows, loss: Any, grad_norm: Any
    ) -> None:
        """Add rows whose loss and gradient norm are known."""
        new: dict[str, Any] = {
            "k": ks,
            "loss": loss,
            "grad_norm": grad_norm,
            "consensus_error": kept.consensus_error,
            "tracking_error": kept.tracking_error,
            "fraction_clipped": kept.fraction_clipped,
            "bytes_sent": self._traffic.before(ks),
        }
        if isinstance(self._traffic, PacketTraffic):
            new |= {**self._traffic.shares(ks), **kept.wire}
        if self._times:
            new["seconds_simulated"] = self._times.before(np.asarray(ks, np.int64))
        if self._paths:
            new |= zip(self._paths, kept.kept["x"].reshape(len(ks), len(self._paths)).T, strict=True)
        if self._invariant:
            new["mass_error"] = kept.kept["mass_error"]
        for name in ("loss", "grad_norm"):  # always measured: NaN has overflowed on the way
            new[name] = np.where(np.isnan(new[name]), np.inf, new[name])
        self.columns = {
            name: np.concatenate([old, np.asarray(new[name], old.dtype)])
            for name, old in self.columns.items()
        }

    def truncate(self, k: int) -> None:
        """Forget rows at iterations k and later."""
        kept = self.columns["k"] < k
        self.columns = {name: column[kept] for name, column in self.columns.items()}

    def first_within(self, tolerance: float, since: int) -> int | None:
        """Return the first recorded k >= since that is within ``tolerance``."""
        good = (self.columns["k"] >= since) & self.is_within(tolerance)
        return int(self.columns["k"][np.argmax(good)]) if good.any() else None

    def is_within(self, tolerance: float) -> npt.NDArray[np.bool_]:
        """Return which rows have gradient norm and consensus error both within ``tolerance``.

        Where mass may be under way, trackers that vanish prove nothing: what is owed must vanish too.
        """
        c = self.columns
        good = (c["grad_norm"] <= tolerance) & (c["consensus_error"] <= tolerance)
        if "in_transit" in c and np.isfinite(c["tracking_error"]).all():
            good &= c["in_transit"] <= tolerance
        return good

    def _evaluate(self, points: Any, first: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        return evaluate_many(self._losses, self._arrays, points, first % GROUP, self.present)


def first_rows(rows: Rows, count: int) -> Rows:
    """Return the first rows, on the host."""
    return jax.tree.map(lambda column: np.asarray(column)[:count], rows)


def evaluate_many(
    losses: LossCode,
    arrays: Any,
    points: npt.NDArray[Any],
    before: int = 0,
    present: npt.NDArray[np.bool_] | None = None,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return F and the norm of its gradient at any number of points, the first in column ``before`` of a product."""
    if not len(points):
        return np.zeros(0), np.zeros(0)
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

    def keep(method: Any, before: Any, after: Any, grad: Any, arrays: Any) -> dict[str, jax.Array]:
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
