"""Runs side by side: equal in shape and code, different in numbers, advanced by one compiled loop together.

For full gradients the products of all runs become one, which is several times faster; mini-batches gain only where the
runs share their samples. A run that diverges stays where it is while the others go on. The numbers are those of single
runs up to rounding: products of another width add up in another order.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from digrad.errors import ArgumentError
from digrad.simulation.advance import Carry, Inputs, advance
from digrad.simulation.drive import Plan, trace_of
from digrad.simulation.prepare import Prepared
from digrad.simulation.recorder import Recorder
from digrad.trace import Trace


def drive_together(runs: Sequence[Prepared], plan: Plan, *, share_samples: bool = False) -> list[Trace]:
    """Run all to the end or to divergence, and return their traces; call it inside ``jax.enable_x64(True)``.

    Args:
        runs: Of one method class, problem and network, from starts of one shape.
        plan: Of each of them; without checkpoint and without stopping at the tolerance.
        share_samples: Give every run the samples of the first.
    """
    if plan.checkpoint or plan.stop_at_tolerance:
        raise ArgumentError("runs side by side have no checkpoint and do not stop at the tolerance.")
    lead = runs[0]
    if share_samples:
        runs = [dataclasses.replace(run, sampler=lead.sampler) for run in runs]
    is_shared = share_samples or lead.sampler is None
    code = lead.code._replace(lanes=True, shared_index=is_shared)
    fixed = lead.fixed._replace(
        method=_stack([run.fixed.method for run in runs]),
        limit=jnp.stack([run.fixed.limit for run in runs]),
        record_every=plan.record_every,
    )
    carry = _stack([run.start for run in runs])._replace(k=lead.start.k)
    recorders = [
        Recorder(run.problem.code, run.fixed.arrays, run.traffic, with_plain_mean=plan.plain_mean)
        for run in runs
    ]
    every = plan.record_every
    while (k := int(carry.k)) < plan.steps and bool(carry.alive.any()):
        end = min(plan.steps, lead.last_end(k, every))
        inputs = _inputs(runs, k, end, plan.steps, is_shared)
        carry, rows = jax.block_until_ready(advance(fixed, carry, end, inputs, code=code))
        for lane, (recorder, reached) in enumerate(zip(recorders, carry.reached.tolist(), strict=True)):
            ks = np.arange(-(-k // every) * every, reached, every)
            recorder.append(ks, jax.tree.map(lambda column, lane=lane: column[:, lane], rows))
    return [
        trace_of(run, plan, recorder, _lane(carry, lane), seconds=0.0)
        for lane, (run, recorder) in enumerate(zip(runs, recorders, strict=True))
    ]


def _inputs(runs: Sequence[Prepared], first: int, end: int, steps: int, is_shared: bool) -> Inputs:
    each = [run.inputs(first, end, steps) for run in (runs[:1] if is_shared else runs)]
    schedules = {
        name: np.stack([run.inputs(first, end, steps).schedules[name] for run in runs], axis=1)
        for name in each[0].schedules
    }
    index: Any = each[0].samples
    if not is_shared:
        index = np.stack([one.samples for one in each], axis=1)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return Inputs(schedules, index, each[0].operators, each[0].fates)  # pyright: ignore[reportArgumentType]


def _stack(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *trees)


def _lane(carry: Carry, lane: int) -> Carry:
    return jax.tree.map(lambda leaf: leaf[lane], carry._replace(k=carry.reached))
