"""A method of digrad driven like any torch optimizer: what both torch engines share."""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from digrad import checks, metrics
from digrad.algorithms.fields import check_columns, numeric_fields, with_fields
from digrad.errors import ArgumentError, NonFiniteError
from digrad.mixing import Network
from digrad.torch.finite import broken_rows
from digrad.torch.flat import FlatParameters
from digrad.torch.memory import release_free_memory
from digrad.torch.mixing_order import CHUNK
from digrad.torch.reasons import agents_text
from digrad.types import Method

MESSAGE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class MethodOptimizer(torch.optim.Optimizer):
    """Steps of a method for the agents of this process, a stack of ``rows``; see the two engines.

    Args:
        flat: The parameters.
        groups: Settings of each parameter group (``lr``, ``weight_decay``), with its parameters.
        method: Any method of :mod:`digrad.algorithms`.
        network: Graph and weights.
        net: The executor.
        agents: The number of the agent of each row.
        weight_decay: Added to the gradient as ``weight_decay * x`` before it is tracked.
        non_finite: What to do about a gradient that is not finite.
    """

    _step_supports_amp_scaling = True  # GradScaler then calls step even on overflow: neighbours are waiting

    def __init__(
        self,
        flat: FlatParameters,
        groups: list[dict[str, Any]],
        method: Method,
        network: Network,
        net: Any,
        agents: Sequence[int],
        weight_decay: float,
        non_finite: str,
    ) -> None:
        self._non_finite = non_finite
        self._flat, self._network, self._net, self._agents = flat, network, net, tuple(agents)
        self._has_own_rate = np.ndim(getattr(method, "step_size", 0.0)) > 0
        self._method = with_fields(method, _local_arrays(method, self._agents, flat))
        self.k = 0
        self._is_built = self._is_averaged = False
        start = self._scheduled("step_size") if hasattr(method, "step_size") else 0.0
        super().__init__(groups, {"lr": start, "weight_decay": weight_decay})
        self._is_built = True
        self._mirrored = start
        self._last_grad: torch.Tensor | None = None
        self._state = self._allocate(self._method_now().init(flat.read(), net))
        is_x = self._method.query(self._state) is self._state.x and self._shares_memory
        self._point = self._state.x if is_x else flat.empty()
        flat.point_at(self._point)
        release_free_memory()
        self._publish()

    _shares_memory = True  # whether parameters may be views of the state itself

    @property
    def state_fields(self) -> Any:
        """The method's state, a NamedTuple of arrays ``[rows, width]``; do not write to it."""
        return self._state

    @property
    def gradients(self) -> torch.Tensor:
        """The gradients of the agents of this process, ``[rows, dimension]``; do not write to it."""
        return self._flat.collect_grad(self._name)

    @property
    def bytes_sent(self) -> int:
        """Bytes that the agents of this process have sent so far."""
        return self._net.bytes_sent

    @property
    def message_dtype(self) -> torch.dtype | None:
        """The format of messages, if it is shorter than that of the numbers."""
        return self._net.message_dtype

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to zero; they stay views of one flat row, so none becomes ``None``."""
        self._flat.zero_grad()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: the flat rows are laid out once; build a new optimizer instead."""
        if self._is_built:
            raise ArgumentError(
                f"`param_group` of {self._name}: parameters cannot be added later; build a new optimizer."
            )
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take one step with the gradients at the current parameters.

        Args:
            closure: Clears the gradients, evaluates the loss, calls backward and returns the loss.

        Returns:
            The loss of ``closure``, if there is one.

        Raises:
            NonFiniteError: A gradient is not finite, and nothing has changed; or a state is not after the step.
        """
        self._refuse_inside_average("step")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        grad = self._gradient()
        self._net.begin_step()
        self._advance(self._method_now(), grad)
        self._check_state()
        self.k += 1
        self._publish()
        return loss

    def estimate(self) -> torch.Tensor:
        """Return each agent's current answer, ``[rows, dimension]``."""
        return self._method.estimate(self._state)

    def estimate_of(self, fields: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the answer that a stored state stands for, ``[rows, dimension]``."""
        return self._method.estimate(type(self._state)(**fields))

    @torch.no_grad()
    def average(self) -> torch.Tensor:
        """Return the average of all agents' answers, ``[dimension]``; every agent must call.

        Where estimates are pulled the weights are those of the Perron vector of R, for push-sum those it carries,
        else equal.
        """
        return self._average("average")

    @torch.no_grad()
    def consensus_error(self) -> float:
        """Return how far the agents are apart, ``||x - 1 xbar||_F / sqrt(n)``; every agent must call."""
        distance = self.estimate() - self._average("consensus_error")
        total = self._sum(distance.square_().sum().reshape(1), "consensus_error")
        return float((total / self._network.n).sqrt())

    @contextlib.contextmanager
    def averaged_parameters(self) -> Iterator[None]:
        """Evaluate the average of all agents inside this context; every agent must enter it.

        Running statistics of BatchNorm stay local: see :func:`digrad.torch.recalibrate`.
        """
        if self._is_averaged:
            raise ArgumentError(f"averaged_parameters() of {self._name} cannot be nested.")
        # Not written in place: the parameters may be on their way to neighbours.
        self._flat.point_at(self._average("averaged_parameters").expand(len(self._agents), -1))
        self._is_averaged = True
        try:
            yield
        finally:
            self._is_averaged = False
            self._flat.point_at(self._point)

    def state_dict(self) -> dict[str, Any]:
        """Return k, the method's state, what short messages refer to, and the settings of the groups.

        Messages under way are no state: they are sent again.
        As with any torch optimizer the tensors are the live ones: copy them if training goes on.
        """
        fields = {name: value for name, value in self._state._asdict().items()}
        settings = [{key: value for key, value in g.items() if key != "params"} for g in self.param_groups]
        state: dict[str, Any] = {"k": self.k, "method": type(self._method).__name__, "fields": fields}
        if self._last_grad is not None:
            state["last_grad"] = self._last_grad
        if self._net.references:
            state["references"] = self._net.references
        return {"state": state, "param_groups": settings}

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Go on from a ``state_dict``; every agent must call, with the same k.

        Raises:
            ArgumentError: It belongs to another method or model.
        """
        self._refuse_inside_average("load_state_dict")
        stored = state_dict["state"]
        self._check_stored(stored, state_dict["param_groups"])
        references = stored.get("references", {})
        self._settle(stored["k"], references)
        self._net.set_references(references)
        for group, settings in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update(settings)
        self.k = int(stored["k"])
        self._mirrored = self.param_groups[0]["lr"]
        last = stored.get("last_grad")
        self._last_grad = None if last is None else last.clone()
        self._store(type(self._state)(**stored["fields"]))
        self._publish()

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
        self._settle(self.k if k is None else k, {})
        self._net.set_references({})
        self.k = self.k if k is None else k
        self._last_grad = None
        self._store(self._method_now().init(start, self._net))
        self._publish()

    def settings(self) -> dict[str, Any]:
        """Return the rates and schedules of this step that all agents must share: those not given per agent."""
        shown: dict[str, Any] = {
            name: [float(group[key]) for group in self.param_groups]
            for name, key in (("lr", "lr"), ("weight decay", "weight_decay"))
        }
        if self._has_own_rate:
            del shown["lr"]
        return shown | {name: np.asarray(v, float).tolist() for name, v in self._scheduled_fields().items()}

    def _refuse_inside_average(self, what: str) -> None:
        if self._is_averaged:
            raise ArgumentError(f"`{what}` of {self._name} must not be called inside averaged_parameters().")

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _advance(self, method: Any, grad: torch.Tensor) -> None:
        self._store(method.step(self._state, grad, self._net))

    def _allocate(self, state: Any) -> Any:
        return type(state)(*(value.clone(memory_format=torch.contiguous_format) for value in state))

    def _store(self, state: Any) -> None:
        for kept, value in zip(self._state, state, strict=True):
            if kept is not value:
                kept.copy_(value)

    def _publish(self) -> None:
        """Show the parameters where the next gradient is wanted."""
        if self._point is not self._state.x:
            method = with_fields(self._method, self._scheduled_fields())
            self._point.copy_(method.query(self._state))

    def _settle(self, k: int, references: Mapping[str, torch.Tensor]) -> None:
        """Make sure that the state may be overwritten."""

    @torch.no_grad()
    def _average(self, call: str) -> torch.Tensor:
        weights = metrics.average_weights(self._method, self._state, self._perron())
        return self._sum(weights @ self.estimate(), call).div_(self._network.n)

    def _sum(self, value: torch.Tensor, call: str) -> torch.Tensor:
        """Return the sum over all processes, in the memory of ``value``; ``call`` is what the user has called."""
        return value

    def _perron(self) -> torch.Tensor:
        u = metrics.perron_weights(self._method, self._network)
        return torch.tensor(u[list(self._agents)], dtype=self._flat.dtype, device=self._flat.device)

    def _scheduled(self, field: str) -> Any:
        value: Any = getattr(self._method, field)
        return value(self.k) if callable(value) else value

    def _method_now(self) -> Any:
        """Return the method of this iteration, schedules evaluated and the step size taken from ``lr``."""
        values = self._scheduled_fields()
        if hasattr(self._method, "step_size"):
            values["step_size"] = self._step_size(values.get("step_size"))
        return with_fields(self._method, values)

    def _scheduled_fields(self) -> dict[str, Any]:
        names = numeric_fields(type(self._method))
        return {name: self._scheduled(name) for name in names if callable(getattr(self._method, name))}

    def _step_size(self, scheduled: float | None) -> Any:
        for group in self.param_groups:
            for name in ("lr", "weight_decay"):
                if not 0 <= group[name] < float("inf"):
                    raise ArgumentError(
                        f"`{name}` of a parameter group of {self._name} must be at least 0 and finite, but got "
                        f"{group[name]!r}."
                    )
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
        broken = broken_rows(grad)
        if broken and self._non_finite == "error":
            self._fail(
                f"step {self.k}: the gradient of {self._named(broken)} is not finite; look at the batch of that step, "
                "or pass non_finite='repeat' to repeat the gradient before."
            )
        if broken:
            warnings.warn(
                f"step {self.k}: the gradient of {self._named(broken)} is not finite; the one before is repeated.",
                RuntimeWarning,
                stacklevel=6,
            )
            grad[broken] = 0.0 if self._last_grad is None else self._last_grad[broken]
        if found_inf is not None or self._non_finite == "repeat":
            self._last_grad = torch.empty_like(grad) if self._last_grad is None else self._last_grad
            self._last_grad.copy_(grad)
        return grad

    def _check_state(self) -> None:
        broken = broken_rows(self._state.x)
        if broken:
            self._fail(
                f"step {self.k}: the state of {self._named(broken)} is not finite any more; lower `lr`, and go on from "
                "a checkpoint."
            )

    def _named(self, rows: Sequence[int]) -> str:
        return agents_text(self._agents[row] for row in rows)

    def _fail(self, reason: str) -> NoReturn:
        """Raise on every agent."""
        raise NonFiniteError(reason)

    def _decayed(self, grad: torch.Tensor) -> torch.Tensor:
        total = grad.clone()
        for settings, group in zip(self.param_groups, self._flat.groups, strict=True):
            if settings["weight_decay"]:
                for part, point in zip(
                    total[:, group].split(CHUNK, 1), self._point[:, group].split(CHUNK, 1), strict=True
                ):
                    part += settings["weight_decay"] * point
        return total

    def _check_stored(self, stored: Mapping[str, Any], groups: Sequence[Any]) -> None:
        if stored["method"] != type(self._method).__name__:
            raise ArgumentError(
                f"`state_dict` of {self._name} is of {stored['method']}, but the method is "
                f"{type(self._method).__name__}; build the optimizer with the same method."
            )
        shapes = {name: tuple(value.shape) for name, value in self._state._asdict().items()}
        given = {name: tuple(value.shape) for name, value in stored["fields"].items()}
        if shapes != given or len(groups) != len(self.param_groups):
            raise ArgumentError(
                f"`state_dict` of {self._name} has arrays {given} in {len(groups)} groups, but the model needs "
                f"{shapes} in {len(self.param_groups)}; build the same model."
            )


def check_arguments(
    method: Any,
    network: Network,
    weight_decay: float,
    message_dtype: torch.dtype | None,
    non_finite: str,
    owner: str,
) -> None:
    """Raise unless the arguments that both engines share can be used."""
    checks.choice(non_finite, "non_finite", owner, ("error", "repeat"))
    if isinstance(method, type) or not isinstance(method, Method):
        raise ArgumentError(
            f"`method` of {owner} must be a method such as CGT(step_size=0.05, threshold=5.0), but got {method!r}."
        )
    if weight_decay != 0:
        checks.positive(weight_decay, "weight_decay", owner)
    if message_dtype is not None and message_dtype not in MESSAGE_DTYPES:
        raise ArgumentError(
            f"`message_dtype` of {owner} must be one of {', '.join(map(str, MESSAGE_DTYPES))}, "
            f"but got {message_dtype!r}."
        )
    check_columns(method, network.n)
    network.require(method.needs, type(method).__name__)


def _local_arrays(method: Any, agents: Sequence[int], flat: FlatParameters) -> dict[str, Any]:
    """Return the hyper-parameters given per agent, ``[n, 1]``, as tensors with the rows of these agents."""
    local: dict[str, Any] = {}
    for name in numeric_fields(type(method)):
        value = getattr(method, name)
        if callable(value) or np.ndim(value) == 0:
            continue
        rows = torch.tensor(np.asarray(value)[list(agents)], dtype=flat.dtype, device=flat.device)
        if name == "step_size" and len(set(rows.flatten().tolist())) > 1:
            raise ArgumentError(
                f"`step_size` of {type(method).__name__} differs between the agents of one process; "
                "give one number, because `lr` mirrors it."
            )
        local[name] = float(rows.flatten()[0]) if name == "step_size" else rows
    return local
