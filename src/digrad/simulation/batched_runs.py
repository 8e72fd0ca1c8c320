"""Batched runs: equal in shape and code, different in numbers, advanced by one vmapped loop.

For full gradients the products of all runs become one, which is several times faster; mini-batches gain only where the
runs share their samples. A run that diverges stays where it is while the others go on. The numbers are those of single
runs up to rounding: products of another width add up in another order.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from digrad.core.hyperparameters import scheduled_fields
from digrad.errors import ArgumentError
from digrad.simulation.driver import deferred_interrupt, drive, ended
from digrad.simulation.loop import Buffer, State, Static, Xs, advance
from digrad.simulation.record import evaluate_many, first_rows, joined, rows_of
from digrad.simulation.setup import Setup, facts_of, inputs, limit_beyond, noise_of, samples_of, schedules_of
from digrad.simulation.simulator import Rows, Simulator
from digrad.trace import Trace

ROW_BYTES = 256 << 20  # what the stored averages of all runs together take at most, about


def drive_batch(
    simulators: Sequence[Simulator],
    options: Sequence[Mapping[str, Any]],
    *,
    share_samples: bool = False,
) -> list[Trace]:
    """Run all to the end, to divergence or to Ctrl-C, and return their traces.

    Args:
        simulators: Of one method class, problem and network.
        options: Of each run, complete; only starts and seeds differ.
        share_samples: Give every run the samples of the first.
    """
    with jax.enable_x64(True):
        return _Batch(simulators, options, share_samples).go()


def can_be_batched(network: Any, options: Mapping[str, Any]) -> bool:
    """Return whether runs with these options may be batched.

    They neither stop early, nor record what has a shape, nor remember gradients of all samples.
    """
    record = options["record"]
    churn = getattr(network.links, "churn", ())
    remembers = options["sampling"] == "saga"
    return not (options["stop_at_tolerance"] or record.paths or record.invariant or churn or remembers)


class _Batch:
    """Runs on their way, and what they have recorded."""

    def __init__(
        self, simulators: Sequence[Simulator], options: Sequence[Mapping[str, Any]], share_samples: bool
    ) -> None:
        self.began = time.perf_counter()
        self.simulators, self.options = simulators, options
        self.setups = [simulator.setup for simulator in simulators]
        lead = self.lead = self.setups[0]
        if not all(can_be_batched(lead.network, one) for one in options):
            raise ArgumentError("batched runs neither stop at the tolerance nor record paths or invariants.")
        if any(setup.network is not lead.network for setup in self.setups):
            raise ArgumentError("batched runs share one network, and all that it draws.")
        if share_samples:
            self.setups = [setup._replace(sampler=lead.sampler) for setup in self.setups]
        self.steps, self.every = options[0]["steps"], lead.options["record_every"]
        # Fewer rows of each if those of all would not fit.
        row_bytes = lead.problem.dim * lead.options["dtype"].itemsize * len(simulators)
        rows = max(1, min(lead.static.rows, ROW_BYTES // row_bytes))
        self.static = lead.static._replace(
            rows=rows, is_batched=True, shares_samples=share_samples or lead.sampler is None
        )
        self.params = lead.params[0]._replace(
            method=_stack([setup.params[0].method for setup in self.setups], lead.options["dtype"]),
            arrays=lead.problem.code.batched_arrays(lead.problem.arrays(lead.options["dtype"])),
        )
        starts = [simulator.init(one["x0"]) for simulator, one in zip(simulators, options, strict=True)]
        self.x0 = [one.x0 for one in starts]
        self.state = _stack([one._replace(x0=None) for one in starts])._replace(k=starts[0].k)
        self.rows: list[Rows] = [{} for _ in simulators]

    def go(self) -> list[Trace]:
        interrupted = False
        with deferred_interrupt() as is_interrupted:
            # Never timed: in which product a point is evaluated, and so its rounding, depends on where the calls end.
            while (k := int(self.state.k)) < self.steps and self.state.alive.any() and not interrupted:
                room = (-(-k // self.every) + self.static.rows) * self.every
                end = min(self.steps, k + self.lead.length, room)
                after, buffer = self._advance(self.state, end, self.every)
                first = -(-k // self.every) * self.every
                ks = [np.arange(first, reached, self.every) for reached in after.reached.tolist()]
                self.rows, self.state = self._extended(ks, buffer), after
                interrupted = is_interrupted()
        self.rows = self._with_last_rows()
        seconds = (time.perf_counter() - self.began) / len(self.setups)
        return [self._trace(number, seconds, interrupted) for number in range(len(self.setups))]

    def _trace(self, number: int, seconds: float, interrupted: bool) -> Trace:
        """Return the trace of one run; one that is far away without having diverged is run alone."""
        simulator, options = self.simulators[number], self.options[number]
        state = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[number]), self._ended())
        state = state._replace(x0=self.x0[number])
        if not (interrupted or state.alive or limit_beyond(simulator.setup, state) is None):
            return drive(simulator, options)
        return ended(
            simulator, options, state, self.rows[number], seconds=seconds, interrupted=interrupted,
            facts=facts_of(simulator.setup, state.x0),
        )  # fmt: skip

    def _ended(self) -> State:
        return self.state._replace(k=self.state.reached)

    def _advance(self, state: State, end: int, every: int) -> tuple[State, Buffer]:
        xs = _inputs(self.setups, int(state.k), end, self.steps, self.static)
        return jax.block_until_ready(advance(self.params, state, end, every, xs, static=self.static))

    def _with_last_rows(self) -> list[Rows]:
        """Return all rows with that of the iteration where each run ended, by one step more."""
        ends, lead = self.state.reached.tolist(), self.lead
        changes = (
            lead.sampler
            or lead.options["gradient_noise"]
            or scheduled_fields(lead.method)
            or not lead.params[0].operators
        )
        buffers: dict[int, Buffer] = {}
        for k in sorted(set(ends)) if changes else [self.steps]:
            here = self.state._replace(k=jnp.asarray(k), alive=jnp.asarray([True] * len(ends)))
            buffers[k] = first_rows(self._advance(here, k + 1, 1)[1], 1)
        picked = [buffers[end if changes else self.steps] for end in ends]
        last = jax.tree.map(
            lambda *columns: np.stack([column[:, number] for number, column in enumerate(columns)], axis=1),
            *picked,
        )
        return self._extended([np.array([end]) for end in ends], last)

    def _extended(self, ks: Sequence[Any], buffer: Buffer) -> list[Rows]:
        """Return the rows of every run with new ones, their loss and gradient evaluated in products that all share."""
        host = first_rows(buffer, max(map(len, ks)))
        own = [
            jax.tree.map(lambda column, number=number, one=one: column[: len(one), number], host)
            for number, one in enumerate(ks)
        ]
        points, cuts = np.concatenate([one.point for one in own]), np.cumsum([len(one) for one in ks])[:-1]
        arrays = self.lead.params[0].arrays
        found = evaluate_many(self.static.losses, arrays, points)
        loss, grad_norm = (np.split(column, cuts) for column in found)
        new = [
            rows_of(ks[i], own[i], loss[i], grad_norm[i], setup.traffic)
            for i, setup in enumerate(self.setups)
        ]
        return [joined([rows, more]) for rows, more in zip(self.rows, new, strict=True)]


def _inputs(setups: Sequence[Setup], first: int, end: int, steps: int, static: Static) -> Xs:
    """Return the inputs of all runs: own schedules and, unless shared, own samples; weights and delivery of one."""
    xs = inputs(setups[0], first, end, steps)
    each = [xs.schedules, *(schedules_of(setup, first, end, steps) for setup in setups[1:])]
    xs = xs._replace(
        schedules={name: np.stack([one[name] for one in each], axis=1) for name in xs.schedules}  # pyright: ignore[reportArgumentType]
    )
    if xs.noise is not None:
        noise: list[Any] = [xs.noise, *(noise_of(setup, first, end) for setup in setups[1:])]
        xs = xs._replace(noise=np.stack(noise, axis=1))  # pyright: ignore[reportArgumentType]
    if static.shares_samples:
        return xs
    own: list[Any] = [xs.samples, *(samples_of(setup, first, end) for setup in setups[1:])]
    return xs._replace(samples=np.stack(own, axis=1))  # pyright: ignore[reportArgumentType]


def _stack(trees: Sequence[Any], dtype: Any = None) -> Any:
    """Return trees as one of a batch; Python's numbers get ``dtype``, as they would in a single run."""

    def stack(*leaves: Any) -> jax.Array:
        # By NumPy, as above: JAX would compile every stack of another shape.
        arrays = [np.asarray(leaf, dtype if isinstance(leaf, float) else None) for leaf in leaves]
        return jax.device_put(np.stack(arrays))

    return jax.tree.map(stack, *trees)
