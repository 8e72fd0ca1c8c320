"""A torch optimizer as a direction, for the torch engines."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from digrad.errors import ArgumentError
from digrad.types import Array


def from_torch(make: Callable[[list[Any]], Any]) -> "TorchDirection":
    """Return the direction of a torch optimizer, such as ``lambda params: torch.optim.Adam(params, lr=1e-3)``.

    Each agent has an optimizer of its own over one flat vector of all its parameters: what an optimizer does layer by
    layer (weight matrices as matrices) it does here on the vector. Its memory is part of the method's state, and
    hence of checkpoints.

    Args:
        make: Returns an optimizer of the given parameters. What it does at a step must depend on nothing but the
            gradient, the parameters and the state it keeps, and its state must have the same entries from its first
            step on.

    Raises:
        ArgumentError: ``make`` cannot be called.
    """
    if not callable(make):
        raise ArgumentError(
            f"`make` of from_torch must be a function such as lambda params: torch.optim.Adam(params, lr=1e-3), but "
            f"got {type(make).__name__}."
        )
    return TorchDirection(make)


@dataclass(frozen=True, eq=False)
class TorchDirection:
    """See :func:`from_torch`."""

    make: Callable[[list[Any]], Any]

    def init(self, x: Array) -> Array:
        """Return an empty memory: a first column that says whether there was a step, then what the state needs."""
        _refuse_others(x)
        return x.new_zeros(
            (
                len(x),
                1
                + sum(entry.numel() for entry in _entries(self.make, x.shape[1], x.dtype, x.device).values()),
            )
        )

    def update(self, tracked: Array, memory: Array, x: Array) -> tuple[Array, Array]:
        """Return what the optimizer makes of each agent's clipped tracker."""
        import torch

        form = _entries(self.make, x.shape[1], x.dtype, x.device)
        move, after = torch.empty_like(x), torch.ones_like(memory)
        for i, row in enumerate(memory):
            parameter = torch.nn.Parameter(x[i].clone())
            optimizer = self.make([parameter])
            parameter.grad = tracked[i].clone()
            if row[0]:
                optimizer.state[parameter] = _unpacked(row[1:], form)
            optimizer.step()
            move[i] = parameter.detach() - x[i]
            after[i, 1:] = _packed(optimizer.state[parameter], form, row)
        return move, after


@functools.cache  # finding out takes a step of an optimizer
def _entries(make: Callable[[list[Any]], Any], width: int, dtype: Any, device: Any) -> dict[str, Any]:
    """Return the forms (without memory) of the tensors that the optimizer of a vector keeps after a first step."""
    import torch

    parameter = torch.nn.Parameter(torch.zeros(width, dtype=dtype, device=device))
    optimizer = make([parameter])
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    kept = _tensors(optimizer.state[parameter])
    return {name: value.new_empty(()).expand(value.shape) for name, value in kept.items()}


def _tensors(state: dict[str, Any]) -> dict[str, Any]:
    import torch

    found = {}
    for name, value in state.items():
        if value is None:
            continue
        if not isinstance(value, torch.Tensor | int | float):
            kind = type(value).__name__
            raise ArgumentError(
                f"`make` of from_torch: its optimizer keeps a {kind} as {name!r}, not numbers."
            )
        found[name] = torch.as_tensor(value)
    return found


def _packed(state: dict[str, Any], form: dict[str, Any], like: Any) -> Any:
    import torch

    kept = _tensors(state)
    return torch.cat([like[:0], *(kept[name].reshape(-1).to(like) for name in form)])


def _unpacked(row: Any, form: dict[str, Any]) -> dict[str, Any]:
    pieces = row.split([entry.numel() for entry in form.values()])
    return {
        name: piece.reshape(entry.shape).to(entry).clone()
        for (name, entry), piece in zip(form.items(), pieces, strict=True)
    }


def _refuse_others(x: Array) -> None:
    if type(x).__module__.partition(".")[0] != "torch":
        raise ArgumentError(
            "`direction` made by from_torch is for the torch engines; use from_optax in the simulator."
        )
