"""Batched runs: equal in shape and code, different in numbers, advanced by one vmapped loop.

For full gradients the products of all runs become one, which is several times faster; mini-batches gain only where the
runs share their samples. A run that diverges stays where it is while the others go on. The numbers are those of single
runs up to rounding: products of another width add up in another order.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from digrad.core.hyperparameters import scheduled_fields
from digrad.errors import ArgumentError
from digrad.simulation.gradient_sources import noise_of, samples_of
from digrad.simulation.loop import Buffer, State, Static, Xs, advance
from digrad.simulation.record import Rows, end_of_room, evaluate_many, first_rows, recorded, rows_of
from digrad.simulation.simulator import Simulator

ROW_BYTES = 256 << 20  # what the stored averages of all runs together take at most, about


def can_be_batched(network: Any, options: Mapping[str, Any]) -> bool:
    """Return whether runs with these options may be batched.

    They neither stop early, nor record what has a shape, nor remember gradients of all samples.
    """
    record = options["record"]
    churn = getattr(network.links, "churn", ())
    remembers = options["sampling"] == "saga"
    return not (options["stop_at_tolerance"] or record.paths or record.invariant or churn or remembers)


class BatchedSimulator:
    """Several simulators as one: states have an axis ``[runs]`` in front, rows are a list with those of each run.

    Call it inside ``jax.enable_x64(True)``.

    Args:
        simulators: Of one method class, problem and network.
        options: Of each run, complete; only starts and seeds differ.
        share_samples: Give every run the samples of the first.

    Attributes:
        length: Iterations of one call at most.
    """

    def __init__(
        self, simulators: Sequence[Simulator], options: Sequence[Mapping[str, Any]], share_samples: bool
    ) -> None:
        self._simulators, lead = simulators, simulators[0]
        self._lead, self.length = lead, lead.length
        if not all(can_be_batched(lead.network, one) for one in options):
            raise ArgumentError("batched runs neither stop at the tolerance nor record paths or invariants.")
        if any(one.network is not lead.network for one in simulators):
            raise ArgumentError("batched runs share one network, and all that it draws.")
        # Fewer rows of each if those of all would not fit.
        row_bytes = lead.problem.dim * lead.options["dtype"].itemsize * len(simulators)
        self._static = lead.static._replace(
            rows=max(1, min(lead.static.rows, ROW_BYTES // row_bytes)),
            is_batched=True,
            shares_samples=share_samples or lead.sampler is None,
        )
        self._params = lead.params[0]._replace(
            method=_stack([one.params[0].method for one in simulators], lead.options["dtype"]),
            arrays=lead.problem.code.batched_arrays(lead.problem.arrays(lead.options["dtype"])),
        )

    def init(self, starts: Sequence[Any]) -> State:
        """Return the state before the first step, from the start of each run."""
        states = [one.init(x0) for one, x0 in zip(self._simulators, starts, strict=True)]
        stacked = _stack([one._replace(x0=None) for one in states])
        return stacked._replace(k=states[0].k, x0=[one.x0 for one in states])

    def run(self, state: State, steps: int) -> tuple[State, list[Rows]]:
        """Take as many of ``steps`` steps as one call of the loop may."""
        k, every = int(state.k), self._lead.options["record_every"]
        end = min(k + steps, end_of_room(k, every, self._static.rows))
        after, buffer = self._advance(state, end, every)
        return after, self._rows([recorded(k, reached, every) for reached in after.reached.tolist()], buffer)

    def measure(self, state: State, last: int) -> list[Rows]:
        """Return the row of the iteration where each run ended, by one step more.

        Args:
            state: State of the batch.
            last: The number of iterations that schedules know.
        """
        ends, lead = state.reached.tolist(), self._lead
        changes = lead.sampler or lead.options["gradient_noise"] or not lead.params[0].operators
        ks = ends if changes or scheduled_fields(lead.method) else [last] * len(ends)
        buffers: dict[int, Buffer] = {}
        for k in sorted(set(ks)):
            here = state._replace(k=jnp.asarray(k), alive=jnp.asarray([True] * len(ends)))
            buffers[k] = first_rows(self._advance(here, k + 1, 1, last)[1], 1)
        rows = jax.tree.map(
            lambda *columns: np.stack([column[:, number] for number, column in enumerate(columns)], axis=1),
            *(buffers[k] for k in ks),
        )
        return self._rows([np.array([end]) for end in ends], rows)

    def states(self, state: State) -> list[State]:
        """Return the state of each run, where it ended."""
        ended, starts = state._replace(k=state.reached, x0=None), state.x0
        return [
            jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[number]), ended)._replace(x0=x0)  # noqa: B023
            for number, x0 in enumerate(starts)
        ]

    def _advance(self, state: State, end: int, every: int, last: int | None = None) -> tuple[State, Buffer]:
        xs = _inputs(self._simulators, int(state.k), end, last, self._static)
        # Not by `advance_of`: without XLA's fused operations the products of all runs take about twice as long.
        done = advance(self._params, state._replace(x0=None), end, every, xs, static=self._static)
        after, buffer = jax.block_until_ready(done)
        return after._replace(x0=state.x0), buffer

    def _rows(self, ks: Sequence[Any], buffer: Buffer) -> list[Rows]:
        """Return the rows of every run, their loss and gradient evaluated in products that all share."""
        host = first_rows(buffer, max(map(len, ks)))
        own = [
            jax.tree.map(lambda column, number=number, one=one: column[: len(one), number], host)
            for number, one in enumerate(ks)
        ]
        points, cuts = np.concatenate([one.point for one in own]), np.cumsum([len(one) for one in ks])[:-1]
        found = evaluate_many(self._static.losses, self._lead.params[0].arrays, points)
        loss, grad_norm = (np.split(column, cuts) for column in found)
        return [
            rows_of(ks[i], own[i], loss[i], grad_norm[i], one.traffic)
            for i, one in enumerate(self._simulators)
        ]


def _inputs(simulators: Sequence[Simulator], first: int, end: int, last: int | None, static: Static) -> Xs:
    """Return the inputs of all runs: own schedules and, unless shared, own samples; weights and delivery of one."""
    lead, *others = simulators
    xs: Any = lead.inputs(first, end, last)
    each = [xs.schedules, *(one.schedules(first, end, last) for one in others)]
    xs = xs._replace(schedules={name: np.stack([one[name] for one in each], axis=1) for name in xs.schedules})
    if xs.noise is not None:
        noise: list[Any] = [noise_of(one.problem, one.options, first, end, lead.length) for one in others]
        xs = xs._replace(noise=np.stack([xs.noise, *noise], axis=1))
    if static.shares_samples:
        return xs
    samples: list[Any] = [samples_of(one.sampler, first, end, lead.length) for one in others]
    return xs._replace(samples=np.stack([xs.samples, *samples], axis=1))


def _stack(trees: Sequence[Any], dtype: Any = None) -> Any:
    """Return trees as one of a batch; Python's numbers get ``dtype``, as they would in a single run."""

    def stack(*leaves: Any) -> jax.Array:
        # By NumPy: JAX would compile every stack of another shape.
        arrays = [np.asarray(leaf, dtype if isinstance(leaf, float) else None) for leaf in leaves]
        return jax.device_put(np.stack(arrays))

    return jax.tree.map(stack, *trees)
