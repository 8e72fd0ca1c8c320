"""The low level of the simulator: a method on a problem over a network, advanced as far as the caller says."""

from collections.abc import Callable, Mapping
from typing import Any, Unpack

import jax
import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad.errors import ArgumentError
from digrad.network import Network
from digrad.problems import Problem
from digrad.simulation.loop import Buffer, Params, State, advance_of
from digrad.simulation.record import evaluate_many, first_rows, joined, rows_of
from digrad.simulation.run_options import (
    SimulatorOptions,
    Start,
    check_parts,
    complete,
    lists_options,
    make_start,
)
from digrad.simulation.setup import Setup, inputs, limit_beyond, set_up, start, with_numbers
from digrad.simulation.state_repair import repaired
from digrad.types import Method

Rows = dict[str, npt.NDArray[Any]]


class Simulator:
    """A method on a problem over a network, to be run step by step, from any state, as often as one likes.

    :func:`digrad.simulate` runs one from its start to its end; use this one to look at states on the way, or to change
    them. The numbers are the same, however a run is cut into calls.

    Args:
        method: For example ``CGT(step_size=0.05, threshold=5.0)``; step sizes and thresholds may be functions of k.
        problem: The private losses.
        network: The communication graph and its weights.
        name: Name of the method in messages; its class by default.
        keep: A function of the method, its state before and after a step and the gradient between them, whose arrays,
            a dictionary, are recorded instead of the usual columns. The loop is compiled once per function.
        options: See :class:`digrad.SimulatorOptions`.

    Attributes:
        setup: The setup made from the arguments.

    Example:
        >>> import digrad as dg
        >>> network, problem = dg.Network(dg.graphs.example5()), dg.problems.example_quadratic()
        >>> sim = Simulator(dg.CGT(step_size=0.05, threshold=5.0), problem, network, record_every=100)
        >>> state = sim.init([10.0, -10.0])
        >>> state, rows = sim.run(state, 300)
        >>> int(state.k), rows["k"].tolist(), bool(rows["loss"][-1] < rows["loss"][0])
        (300, [0, 100, 200], True)
        >>> sim.estimate(state).shape
        (5, 2)
    """

    setup: Setup

    @lists_options(SimulatorOptions)
    def __init__(
        self,
        method: Method,
        problem: Problem,
        network: Network,
        *,
        name: str | None = None,
        keep: Callable[..., Mapping[str, Any]] | None = None,
        **options: Unpack[SimulatorOptions],
    ) -> None:
        label = type(method).__name__ if name is None else name
        if not isinstance(label, str) or not label:
            raise ArgumentError(f"`name` of Simulator must be a non-empty string, but got {name!r}.")
        check_parts(method, problem, network, label)
        wanted = complete(options, "Simulator", SimulatorOptions)
        with jax.enable_x64(True):
            self.setup = set_up(method, problem, network, wanted, name=label, keep=keep)

    @classmethod
    def of(cls, setup: Setup) -> "Simulator":
        """Return the simulator of a setup whose arguments have been checked."""
        simulator = object.__new__(cls)
        simulator.setup = setup
        return simulator

    def init(self, x0: Start | None = None) -> State:
        """Return the state before the first step.

        Args:
            x0: The start, as in :class:`digrad.RunOptions`.
        """
        options, problem = self.setup.options, self.setup.problem
        begin = make_start(x0, problem, options["seed"]).astype(options["dtype"])
        with jax.enable_x64(True):
            return start(self.setup, begin)

    def run(self, state: State, steps: int) -> tuple[State, Rows]:
        """Take ``steps`` steps, fewer if the run diverges: ``state.alive`` tells, and ``state.k`` where.

        Args:
            state: State from :meth:`init`, or from an earlier call.
            steps: How many.

        Returns:
            The state then, and what was recorded before each step whose k is a multiple of ``record_every``: columns by
            name, ``k`` among them. A run that had diverged before records nothing.
        """
        end, parts = int(state.k) + checks.count(steps, "steps", "Simulator.run"), []
        with jax.enable_x64(True):
            while int(state.k) < end and bool(state.alive):
                state, rows = self._call(state, end)
                parts.append(rows)
        return state, joined(parts)

    def measure(self, state: State, last: int | None = None) -> Rows:
        """Return the row of a state, whatever its k; what it shows of the trackers is seen in one step more.

        Args:
            state: State from :meth:`init` or :meth:`run`; it may have diverged.
            last: The number of iterations that schedules know: none is asked for a later value.
        """
        k = int(state.k)
        params, present = self._phase(k - 1)  # an event at k has not happened yet
        with jax.enable_x64(True):
            alive = state._replace(alive=jax.numpy.asarray(True), reached=state.k)
            _, buffer = self._advance(params, alive, k + 1, every=1, steps=last)
            return self._rows(np.array([k]), buffer, present)

    def estimate(self, state: State) -> npt.NDArray[np.floating]:
        """Return the estimates of all agents, ``[n, d]``."""
        return np.asarray(self.setup.params[0].method.estimate(state.method_state))

    def with_numbers(self, method: Method, seed: int) -> "Simulator":
        """Return a simulator that shares everything but the numbers of the method and the seed of the samples.

        Args:
            method: A method of the same class, with the same strings and schedules in the same places.
            seed: Random seed of the samples; the network must draw nothing, or have this seed.
        """
        with jax.enable_x64(True):
            return Simulator.of(with_numbers(self.setup, method, seed))

    def _call(self, state: State, end: int) -> tuple[State, Rows]:
        """Take as many steps as one call of the loop may, up to ``end``, or up to where agents join or leave."""
        setup, k = self.setup, int(state.k)
        every = setup.options["record_every"]
        params, present = self._phase(k)
        churn = setup.delivery and setup.delivery.churn
        if churn:
            end = min([end, *(event.at for event in churn.events if event.at > k)])
            if (event := churn.event(k)) is not None:
                state = repaired(event, state, params)
        first_row = -(-k // every)
        end = min(end, k + setup.length, (first_row + setup.static.rows) * every)
        after, buffer = self._advance(params, state, end, every=every)
        if not after.alive and (limit := limit_beyond(setup, after)) is not None:
            after = after._replace(limit=limit, alive=jax.numpy.asarray(True))
        return after, self._rows(np.arange(first_row * every, int(after.k), every), buffer, present)

    def _advance(
        self, params: Params, state: State, end: int, *, every: int, steps: int | None = None
    ) -> tuple[State, Buffer]:
        static, xs = self.setup.static, inputs(self.setup, int(state.k), end, steps)
        advance = advance_of(static, *state.grad.shape)
        done = advance(params, state._replace(x0=None), end, every, xs, static=static)
        after, buffer = jax.block_until_ready(done)
        return after._replace(x0=state.x0), buffer

    def _phase(self, k: int) -> tuple[Params, npt.NDArray[np.bool_] | None]:
        """Return the parameters of iteration k, and the agents that are present if not all are."""
        churn = self.setup.delivery and self.setup.delivery.churn
        phase = churn.phase(k) if churn else 0
        return self.setup.params[phase], churn.present[phase] if churn else None

    def _rows(self, ks: Any, buffer: Buffer, present: Any) -> Rows:
        setup, host = self.setup, first_rows(buffer, len(ks))
        points: Any = host.point
        if setup.keeps:
            return {"k": ks, **host.kept}
        row = -(-int(ks[0]) // setup.options["record_every"]) if len(ks) else 0  # number of the first one
        arrays = setup.params[0].arrays
        loss, grad_norm = evaluate_many(setup.static.losses, arrays, points, row, present)
        return rows_of(ks, host, loss, grad_norm, setup.traffic)
