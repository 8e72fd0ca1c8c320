"""A method of digrad driven like any torch optimizer: what both optimizers share."""

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from digrad import checks, metrics
from digrad._internal.error_text import agents_text
from digrad.core import hyperparameters
from digrad.core.hyperparameters import with_fields
from digrad.core.net import perron_weights
from digrad.core.traffic import early_messages
from digrad.errors import ArgumentError, NonFiniteError
from digrad.links import ChurnSchedule
from digrad.network import Network
from digrad.torch.engines.engine import Engine, overwrite
from digrad.torch.engines.flat_parameters import FlatParameters, nonfinite_rows
from digrad.torch.engines.memory_reuse import reused_memory
from digrad.torch.engines.mixing import PIECE
from digrad.torch.engines.replica_engine import SingleProcess
from digrad.torch.engines.settings import local_arrays, shared_settings
from digrad.torch.engines.step_metrics import StepMetrics
from digrad.torch.launch.preemption import Preemption, Saver
from digrad.torch.process_network import ProcessNetwork
from digrad.types import Average, Method


class BaseOptimizer(torch.optim.Optimizer):
    """Steps of a method for the agents of this process, a stack of ``rows``; see the two optimizers.

    Args:
        flat: The parameters.
        groups: Settings of each parameter group (``lr``, ``weight_decay``), with its parameters.
        method: Any method of :mod:`digrad.methods`.
        processes: Those that the agents live in.
        engine: How they step.
        agents: The number of the agent of each row.
        weight_decay: Added to the gradient as ``weight_decay * x`` before it is tracked.
        non_finite: Policy for a gradient that is not finite.
        churn: Which agents are there when; None if all of them always are.
    """

    _step_supports_amp_scaling = True  # GradScaler then calls step even on overflow: neighbours are waiting
    _metrics: StepMetrics | None = None  # these two are of an agent in its own process
    _preemption: Preemption | None = None

    def __init__(
        self,
        flat: FlatParameters,
        groups: list[dict[str, Any]],
        method: Method,
        processes: ProcessNetwork | SingleProcess,
        engine: Engine,
        agents: Sequence[int],
        weight_decay: float,
        non_finite: str,
        churn: ChurnSchedule | None = None,
    ) -> None:
        self._non_finite, self._churn = non_finite, churn
        self._flat, self._processes, self._agents = flat, processes, tuple(agents)
        self._network: Network = processes.network
        self._engine, engine.shapes = engine, flat.shapes
        self._given, self._local = method, local_arrays(method, self._agents, flat)
        self.k = 0
        self._is_built = self._is_averaged = False
        self._bytes_before = 0  # sent by those whose state was loaded
        self._method = self._at(0)
        start = getattr(self._method, "step_size", 0.0)
        super().__init__(groups, {"lr": start, "weight_decay": weight_decay})
        self._is_built = True
        self._check_groups()
        self._mirrored = start
        self._last_grad: torch.Tensor | None = None
        begun = self._method_now().init(flat.read(), self._engine)
        self._state = type(begun)(*(value.clone(memory_format=torch.contiguous_format) for value in begun))
        early = early_messages(method, torch.ones(1, 2), torch.eye(1))
        self._early = [(primitive, getattr(self._state, name)) for primitive, name in early]
        is_x = self._method.query(self._state) is self._state.x
        # Of several agents the rows of the parameters are aligned, those of the state are not.
        self._point = self._state.x if is_x and len(self._agents) == 1 else flat.empty()
        flat.point_at(self._point)
        self._memory = reused_memory(flat.grad)
        self._publish()

    @property
    def state_fields(self) -> Any:
        """The method's state, a NamedTuple of arrays ``[rows, width]``; do not write to it."""
        return self._state

    @property
    def gradients(self) -> torch.Tensor:
        """The gradients of the agents of this process, ``[rows, dimension]``; do not write to it."""
        return self._flat.collect_grad(self._name)

    @torch.no_grad()
    def clip_ratios(self) -> torch.Tensor | None:
        """Return what each agent of this process clipped in the last step, relative to its threshold, ``[rows, 1]``.

        None for a method that does not clip, or not by what an agent knows itself.
        """
        method = self._at(self.k - 1)
        if not hasattr(method, "diagnostics") or "mean" in method.needs:
            return None
        return method.diagnostics(self._state, self.gradients, None)["clip_ratio"]

    @property
    def bytes_sent(self) -> int:
        """Bytes that the steps of the agents of this process have sent so far, before a resume too.

        Between processes they are those that travelled; in one process, those that would travel. What :meth:`average`
        and :meth:`consensus_error` send is no part of a step, and not counted.
        """
        return self._bytes_before + self._engine.bytes_sent

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to zero; they stay views of one flat row, so none becomes ``None``."""
        self._flat.zero_grad()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: the flat rows are laid out once; build a new optimizer instead."""
        if self._is_built:
            raise ArgumentError(
                f"`param_group` of {self._name}: parameters cannot be added later; build a new optimizer."
            )
        # Without the decorator, which imports all of torch.compile: seconds at the start of every agent.
        inspect.unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step with the gradients at the current parameters.

        Args:
            closure: Clears the gradients, evaluates the loss, calls backward and returns the loss.

        Returns:
            The loss of ``closure``, if there is one.

        Raises:
            NonFiniteError: A gradient is not finite, and nothing has changed; or a state is not after the step.
            SystemExit: The run was preempted (SIGTERM) and is saved; see :attr:`preempted`.
        """
        self._refuse_inside_average("step")
        self._refuse_written()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_groups()
        with self._memory:
            grad = self._gradient()
            self._engine.advance(self._method_now(), self._state, grad)
            self._check_state()
            self.k += 1
            self._publish()
        return loss

    def log(self, **values: Any) -> None:
        """Add numbers, such as the loss, to the line of the next step in the files of ``digrad launch --metrics``.

        Args:
            **values: Numbers, or tensors of one, by name; they are read only if there are such files.
        """
        if self._metrics:
            self._metrics.log(values)

    def estimate(self) -> torch.Tensor:
        """Return each agent's current answer, ``[rows, dimension]``."""
        return self._method.estimate(self._state)

    def estimate_of(self, fields: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the answer that a stored state stands for, ``[rows, dimension]``."""
        return self._method.estimate(type(self._state)(**fields))

    @torch.no_grad()
    def average(self, average: Average = "plain") -> torch.Tensor:
        """Return the average of all agents' answers, ``[dimension]``; every agent must call.

        Args:
            average: Their ``plain`` mean, or the ``weighted`` one that the dynamics of the method conserve: where
                estimates are pulled the weights are those of the Perron vector of R, for push-sum those it carries,
                else equal; on a network that changes with the iteration they are equal too.
        """
        return self._average("average", average)

    @torch.no_grad()
    def consensus_error(self, average: Average = "plain") -> float:
        """Return how far the agents are apart, ``||x - 1 xbar||_F / sqrt(n)``; every agent must call.

        Args:
            average: As in :meth:`average`.
        """
        distance = self.estimate() - self._average("consensus_error", average)
        distance *= (self._presence() > 0)[:, None]
        total = self._add_up(distance.square_().sum().reshape(1), "consensus_error")
        return float((total / self._network.n).sqrt())

    @contextlib.contextmanager
    def averaged_parameters(self, average: Average = "plain") -> Iterator[None]:
        """Evaluate the average of all agents inside this context; every agent must enter it.

        Running statistics of BatchNorm stay local: see :func:`digrad.torch.recalibrate`.

        Args:
            average: As in :meth:`average`.
        """
        if self._is_averaged:
            raise ArgumentError(f"averaged_parameters() of {self._name} cannot be nested.")
        self._refuse_written()
        # Not written in place: the parameters may be on their way to neighbours.
        self._flat.point_at(self._average("averaged_parameters", average).expand(len(self._agents), -1))
        self._is_averaged = True
        try:
            yield
        finally:
            self._is_averaged = False
            self._flat.point_at(self._point)

    def state_dict(self) -> dict[str, Any]:
        """Return k, the state of the method and of the links, and the settings of the groups.

        Messages under way are no state: they are sent again.
        As with any torch optimizer the tensors are the live ones: copy them if training goes on.
        """
        fields = {name: value for name, value in self._state._asdict().items()}
        settings = [{key: value for key, value in g.items() if key != "params"} for g in self.param_groups]
        state: dict[str, Any] = {"k": self.k, "method": type(self._method).__name__, "fields": fields}
        state["bytes_sent"] = self.bytes_sent
        if self._last_grad is not None:
            state["last_grad"] = self._last_grad
        links = self._engine.stored_links()
        if links:
            state["links"] = links
        if self._network.links is not None:
            state["links_are"] = repr(self._network.links)
        return {"state": state, "param_groups": settings}

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Go on from a ``state_dict``; every agent must call, with the same k.

        Raises:
            ArgumentError: It belongs to another method, model or links.
        """
        self._refuse_inside_average("load_state_dict")
        stored = state_dict["state"]
        self._check_stored(stored, state_dict["param_groups"])
        self._engine.go_to(int(stored["k"]), stored.get("links", {}))
        for group, settings in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update(settings)
        self.k = int(stored["k"])
        self._mirrored = self.param_groups[0]["lr"]
        last = stored.get("last_grad")
        self._last_grad = None if last is None else last.clone()
        overwrite(self._state, type(self._state)(**stored["fields"]))
        self._publish()
        # Afterwards: what was sent ahead to this step is counted already.
        self._bytes_before = int(stored["bytes_sent"]) - self._engine.bytes_sent

    @torch.no_grad()
    def restart_tracking(self, x: torch.Tensor | None = None, *, k: int | None = None) -> None:
        """Start again at ``x`` with an empty state; every agent must call.

        Trackers refill at the next step, so that their sum is right whatever was lost.

        Args:
            x: ``[rows, dimension]``; by default the current answers.
            k: The iteration to go on with; by default the current one.
        """
        self._refuse_inside_average("restart_tracking")
        start = (self.estimate() if x is None else x).clone()
        k = self.k if k is None else k
        self._engine.go_to(k, {})
        self.k = k
        self._last_grad = None
        overwrite(self._state, self._method_now().init(start, self._engine))
        self._publish()

    @property
    def preempted(self) -> bool:
        """Return whether ``digrad launch`` was preempted by SIGTERM, and this is the step at which all agents end.

        Look at it at the end of the loop body, save and leave the loop. If ``Checkpoints`` are there and the loop goes
        on nevertheless, the next :meth:`step` saves this step, with schedulers as they are then, and raises
        ``SystemExit(0)``. A loop without ``Checkpoints`` calls :meth:`end_when_preempted` before it begins.
        """
        return self._preemption is not None and self._preemption.is_over

    def end_when_preempted(self, saver: Saver | None = None) -> None:
        """Let all agents end at the same step when ``digrad launch`` is preempted (SIGTERM); every agent must call.

        Args:
            saver: Saves that step, as ``Checkpoints`` do; without one the loop looks at :attr:`preempted`.
        """
        if self._preemption:
            self._preemption.enable(saver)

    @contextlib.contextmanager
    def together(self, call: str) -> Iterator[None]:
        """Keep the states of all agents as they belong together; every agent must enter."""
        if self._engine.gather(call):
            self._show()
        yield
        self._engine.release()

    def settings(self) -> dict[str, Any]:
        """Return the rates and schedules of this step that all agents must share: those not given per agent."""
        return shared_settings(self._given, self.param_groups, self.k)

    def _refuse_inside_average(self, what: str) -> None:
        if self._is_averaged:
            raise ArgumentError(f"`{what}` of {self._name} must not be called inside averaged_parameters().")

    @torch.no_grad()
    def _refuse_written(self) -> None:
        """Raise if somebody else has written to parameters that only show the state: the step would not see it."""
        if self._point is self._state.x:
            return
        wanted = self._at(self.k).query(self._state)
        if torch.equal(self._point, wanted):
            return
        same = (self._point == wanted) | (self._point.isnan() & wanted.isnan())
        written = [row for row, is_same in enumerate(same.all(1).tolist()) if not is_same]
        if written:
            raise ArgumentError(
                f"the parameters of {self._named(written)} were changed since the last step of {self._name}, which "
                "does not see such changes; load weights before it is built, or pass them to `restart_tracking`."
            )

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _publish(self) -> None:
        """Show the parameters where the next gradient is wanted, and begin the next iteration."""
        self._show()
        self._engine.publish(self.k, self._early)

    @torch.no_grad()
    def _show(self) -> None:
        if self._point is not self._state.x:
            self._point.copy_(self._at(self.k).query(self._state))

    @torch.no_grad()
    def _average(self, call: str, average: str) -> torch.Tensor:
        checks.choice(average, "average", self._name, metrics.AVERAGES)
        with self.together(call):
            weights = self._presence()
            if average == "weighted":
                weights = metrics.average_weights(self._method, self._state, self._perron())
            weighted = torch.cat([weights @ self.estimate(), weights.sum().reshape(1)])
            total = self._add_up(weighted, call)
            return total[:-1] / total[-1]  # not n: of push-sum, part may be under way

    def _add_up(self, values: torch.Tensor, call: str) -> torch.Tensor:
        return self._processes.add_up(values, f"{self._name}.{call}()")

    def _perron(self) -> torch.Tensor:
        return self._presence() * self._rows(perron_weights(self._given, self._network)[0])

    def _presence(self) -> torch.Tensor:
        """Return the weights of averages over the agents that are there: ones without churn."""
        churn, n = self._churn, self._network.n
        return self._rows(np.ones(n) if churn is None else churn.weights(churn.phase(self.k)))

    def _rows(self, weights: npt.NDArray[np.float64]) -> torch.Tensor:
        return torch.tensor(weights[list(self._agents)], dtype=self._flat.dtype, device=self._flat.device)

    def _at(self, k: int) -> Any:
        """Return the method of iteration k for the agents of this process, with its own step size."""
        return with_fields(hyperparameters.at_iteration(self._given, k), self._local)

    def _method_now(self) -> Any:
        """Return the method of this iteration, with the step size taken from ``lr``."""
        method = self._at(self.k)
        if not hasattr(method, "step_size"):
            return method
        scheduled = method.step_size if "step_size" in hyperparameters.scheduled_fields(self._given) else None
        return with_fields(method, {"step_size": self._step_size(scheduled)})

    def _check_groups(self) -> None:
        for group in self.param_groups:
            for name in ("lr", "weight_decay"):
                if not 0 <= group[name] < float("inf"):
                    raise ArgumentError(
                        f"`{name}` of a parameter group of {self._name} must be at least 0 and finite, but got "
                        f"{group[name]!r}."
                    )

    def _step_size(self, scheduled: float | None) -> Any:
        if scheduled is not None:
            if any(group["lr"] != self._mirrored for group in self.param_groups):
                raise ArgumentError(
                    f"`lr` of {self._name} was changed, but `step_size` of the method is a schedule; use one of "
                    "the two."
                )
            self._mirrored = scheduled
            for group in self.param_groups:
                group["lr"] = scheduled
        rates = [group["lr"] for group in self.param_groups]
        if all(rate == rates[0] for rate in rates):
            return rates[0]
        vector = torch.empty(1, self._flat.dimension, dtype=self._flat.dtype, device=self._flat.device)
        for rate, group in zip(rates, self._flat.groups, strict=True):
            vector[:, group] = rate
        return vector

    def _gradient(self) -> torch.Tensor:
        grad = self._flat.collect_grad(self._name)
        found_inf, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found_inf is not None and float(found_inf) > 0:
            return torch.zeros_like(grad) if self._last_grad is None else self._last_grad
        if scale is not None:  # in place, as GradScaler.unscale_ does
            grad.mul_(scale.to(grad.device).double().reciprocal().to(grad.dtype))
        if any(group["weight_decay"] for group in self.param_groups):
            grad = self._decayed(grad)
        broken = nonfinite_rows(grad)
        if broken and self._non_finite == "error":
            self._fail(
                f"the gradient of {self._named(broken)} is not finite; look at the batch of that step, or pass "
                "non_finite='repeat' to repeat the previous gradient."
            )
        if broken:
            warnings.warn(
                f"step {self.k}: the gradient of {self._named(broken)} is not finite; the previous one is repeated.",
                RuntimeWarning,
                stacklevel=5,
            )
            grad[broken] = 0.0 if self._last_grad is None else self._last_grad[broken]
        if found_inf is not None or self._non_finite == "repeat":
            self._last_grad = torch.empty_like(grad) if self._last_grad is None else self._last_grad
            self._last_grad.copy_(grad)
        return grad

    def _check_state(self) -> None:
        broken = nonfinite_rows(self._state.x)
        if broken:
            self._fail(
                f"the state of {self._named(broken)} is no longer finite; lower `lr`, and resume from a checkpoint."
            )

    def _fail(self, reason: str) -> NoReturn:
        """Raise on every agent."""
        self._processes.fail(NonFiniteError(f"step {self.k}: {reason}"))

    def _named(self, rows: Sequence[int]) -> str:
        return agents_text(self._agents[row] for row in rows)

    def _decayed(self, grad: torch.Tensor) -> torch.Tensor:
        total = grad.clone()
        for settings, group in zip(self.param_groups, self._flat.groups, strict=True):
            if settings["weight_decay"]:
                for part, point in zip(
                    total[:, group].split(PIECE, 1), self._point[:, group].split(PIECE, 1), strict=True
                ):
                    part += settings["weight_decay"] * point
        return total

    def _check_stored(self, stored: Mapping[str, Any], groups: Sequence[Any]) -> None:
        if stored["method"] != type(self._method).__name__:
            raise ArgumentError(
                f"`state_dict` of {self._name} is of {stored['method']}, but the method is "
                f"{type(self._method).__name__}; build the optimizer with the same method."
            )
        links = repr(self._network.links)
        if stored.get("links_are", links) != links:
            raise ArgumentError(
                f"`state_dict` of {self._name} has the state of {stored['links_are']}, but the network has {links}, "
                "with which undelivered mass would be lost; build the same network, or call restart_tracking()."
            )
        shapes = {name: tuple(value.shape) for name, value in self._state._asdict().items()}
        given = {name: tuple(value.shape) for name, value in stored["fields"].items()}
        if shapes != given or len(groups) != len(self.param_groups):
            raise ArgumentError(
                f"`state_dict` of {self._name} has arrays {given} in {len(groups)} groups, but the model needs "
                f"{shapes} in {len(self.param_groups)}; build the same model."
            )
