"""Runs side by side: equal in shape and code, different in numbers, advanced by one compiled loop together.

For full gradients the products of all runs become one, which is several times faster; mini-batches gain only where the
runs share their samples. A run that diverges stays where it is while the others go on. The numbers are those of single
runs up to rounding: products of another width add up in another order.
"""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from digrad.core.hyperparameters import scheduled_fields
from digrad.errors import ArgumentError
from digrad.simulation.driver import Plan, chunks, drive, ended
from digrad.simulation.interrupt import deferred_interrupt
from digrad.simulation.loop import Carry, Code, Fixed, Inputs, Rows, advance
from digrad.simulation.record import Recorder, evaluate_many, first_rows
from digrad.simulation.setup import Prepared
from digrad.trace import Trace

ROW_BYTES = 256 << 20  # what the stored averages of all runs together take at most, about


def drive_together(runs: Sequence[Prepared], plan: Plan, *, share_samples: bool = False) -> list[Trace]:
    """Run all to the end, to divergence or to Ctrl-C, and return their traces; call it inside ``jax.enable_x64(True)``.

    Args:
        runs: Of one method class, problem and network, from starts of one shape.
        plan: Of each of them; without checkpoint and without stopping at the tolerance.
        share_samples: Give every run the samples of the first.
    """
    if plan.checkpoint or plan.stop_at_tolerance:
        raise ArgumentError("runs side by side have no checkpoint and do not stop at the tolerance.")
    began, lead = time.perf_counter(), _with_room_for(runs)
    if any(run.network is not lead.network for run in runs):
        raise ArgumentError("runs side by side share one network, and all that it draws.")
    if share_samples:
        runs = [dataclasses.replace(run, sampler=lead.sampler) for run in runs]
    is_shared = share_samples or lead.sampler is None
    code = lead.code._replace(lanes=True, shared_index=is_shared)
    fixed = lead.fixed._replace(
        method=_stack([run.fixed.method for run in runs]),
        arrays=lead.problem.code.side_by_side(lead.problem.arrays(lead.dtype)),
        record_every=plan.record_every,
    )
    carry = _stack([run.start for run in runs])._replace(k=lead.start.k)
    recorders = [Recorder(run.problem.code, run.fixed.arrays, run.traffic) for run in runs]
    every, interrupted = plan.record_every, False

    def call(carry: Carry, end: int) -> tuple[Carry, Rows]:
        inputs = _inputs(runs, int(carry.k), end, plan.steps, is_shared)
        return jax.block_until_ready(advance(fixed, carry, end, inputs, code=code))

    with deferred_interrupt() as is_interrupted:
        # Never timed: in which product a point is evaluated, and so its rounding, depends on where the chunks end.
        parts = chunks(
            call, carry, lambda k, _: lead.last_end(k, every), plan.steps, is_interrupted=is_interrupted,
            longest=lead.length,
        )  # fmt: skip
        try:
            for k, after, rows in parts:
                ks = [np.arange(-(-k // every) * every, reached, every) for reached in after.reached.tolist()]
                _append(recorders, lead, ks, _by_lane(rows, list(map(len, ks))))
                carry = after
        except KeyboardInterrupt:
            interrupted = True
            for recorder in recorders:
                recorder.truncate(int(carry.k))  # rows of a chunk whose state was not yet taken over
    ends = carry.reached.tolist()
    last = _last_rows(runs, fixed._replace(record_every=1), carry, plan, code)
    _append(recorders, lead, [np.array([end]) for end in ends], last)
    seconds = (time.perf_counter() - began) / len(runs)
    traces = [
        ended(run, plan, recorder, _lane(carry, lane), seconds=seconds)
        for lane, (run, recorder) in enumerate(zip(runs, recorders, strict=True))
    ]
    if interrupted:
        return [dataclasses.replace(trace, interrupted=True) for trace in traces]
    # A run that is far away without having diverged cannot go on beside the others; it runs alone.
    return [
        drive(run, plan) if trace.verdict == "diverged" and run.limit_beyond(_lane(carry, lane)) else trace
        for lane, (run, trace) in enumerate(zip(runs, traces, strict=True))
    ]


def _last_rows(runs: Sequence[Prepared], fixed: Fixed, carry: Carry, plan: Plan, code: Code) -> list[Rows]:
    """Return the row of each run at the iteration where it ended, by one step more."""
    ends = carry.reached.tolist()
    changes = runs[0].sampler or scheduled_fields(runs[0].method) or not runs[0].fixed.operators
    found: dict[int, list[Rows]] = {}
    for k in sorted(set(ends)) if changes else [plan.steps]:
        here = carry._replace(k=jnp.asarray(k), alive=jnp.asarray([True] * len(ends)))
        inputs = _inputs(runs, k, k + 1, plan.steps, code.shared_index)
        _, rows = advance(fixed, here, k + 1, inputs, code=code)
        found[k] = _by_lane(rows, [1] * len(ends))
    return [found[end if changes else plan.steps][lane] for lane, end in enumerate(ends)]


def _by_lane(rows: Rows, counts: Sequence[int]) -> list[Rows]:
    """Return the first rows of each lane, on the host."""
    host = first_rows(rows, max(counts))
    return [
        jax.tree.map(lambda column, lane=lane, count=count: column[:count, lane], host)
        for lane, count in enumerate(counts)
    ]


def _append(recorders: Sequence[Recorder], lead: Prepared, ks: Sequence[Any], rows: Sequence[Rows]) -> None:
    """Add rows to every recorder, with loss and gradient evaluated in products that all lanes share."""
    cuts = np.cumsum([len(one) for one in ks])[:-1]
    together = np.concatenate([kept.point for kept in rows])
    loss, grad_norm = (
        np.split(column, cuts) for column in evaluate_many(lead.problem.code, lead.fixed.arrays, together)
    )
    for lane, recorder in enumerate(recorders):
        recorder.extend(ks[lane], rows[lane], loss[lane], grad_norm[lane])


def _with_room_for(runs: Sequence[Prepared]) -> Prepared:
    """Return the first run, with room for fewer rows if those of all runs would not fit."""
    lead = runs[0]
    row_bytes = lead.problem.dim * lead.dtype.itemsize * len(runs)
    rows = max(1, min(lead.code.rows, ROW_BYTES // row_bytes))
    return dataclasses.replace(lead, code=lead.code._replace(rows=rows))


def _inputs(runs: Sequence[Prepared], first: int, end: int, steps: int, is_shared: bool) -> Inputs:
    """Return what all runs are given: schedules and, unless shared, samples of their own; weights and fates of one."""
    inputs = runs[0].inputs(first, end, steps)
    each = [inputs.schedules, *(run.schedules(first, end, steps) for run in runs[1:])]
    schedules = {name: np.stack([one[name] for one in each], axis=1) for name in inputs.schedules}
    if is_shared:
        return inputs._replace(schedules=schedules)
    own: list[Any] = [inputs.samples, *(run.samples(first, end) for run in runs[1:])]
    return inputs._replace(schedules=schedules, samples=np.stack(own, axis=1))


def _stack(trees: Sequence[Any]) -> Any:
    # By NumPy, as below: JAX would compile every stack and every slice of another shape.
    return jax.tree.map(
        lambda *leaves: jax.device_put(np.stack([np.asarray(leaf) for leaf in leaves])), *trees
    )


def _lane(carry: Carry, lane: int) -> Carry:
    return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[lane]), carry._replace(k=carry.reached))
