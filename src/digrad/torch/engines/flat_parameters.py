"""One flat row of numbers per agent, of which the parameters of its model are views.

A step of a method then works on a few large arrays instead of many small tensors, and a message is one piece
of memory. The gradients are views of a flat row too, so that nothing has to be collected.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from digrad.errors import ArgumentError
from digrad.torch.engines.mixing import PIECE
from digrad.types import Shapes

ALIGNMENT = 64  # bytes; matrix kernels may choose another order of summation for rows aligned differently


class FlatParameters:
    """The trainable parameters of ``rows`` agents as rows ``[rows, dimension]``.

    Tied parameters are counted once, frozen ones are left out, a channels_last weight keeps its layout.
    Convert a model (device, dtype, memory format) before, not after.

    Args:
        rows: For each agent its parameter groups, each a list of parameters.
        owner: Who asks, for messages.

    Raises:
        ArgumentError: There is nothing to train, or the parameters differ in dtype, device or, between
            agents, in shape.
    """

    def __init__(self, rows: Sequence[Sequence[Sequence[torch.Tensor]]], owner: str) -> None:
        kept = [_trainable(groups) for groups in rows]
        self._rows = [[parameter for group in groups for parameter in group] for groups in kept]
        self.frozen = [p for groups in rows for group in groups for p in group if not p.requires_grad]
        _check(self._rows, owner)
        first = self._rows[0][0]
        self.dtype, self.device = first.dtype, first.device
        counts = [sum(parameter.numel() for parameter in group) for group in kept[0]]
        ends = [sum(counts[: i + 1]) for i in range(len(counts))]
        self.groups = tuple(slice(end - count, end) for count, end in zip(counts, ends, strict=True))
        self.dimension = ends[-1]
        self.grad = self.empty().zero_()
        self._grad_views = [
            _views(parameters, row) for parameters, row in zip(self._rows, self.grad, strict=True)
        ]
        self._places: list[tuple[torch.Tensor, int]] = []  # where each parameter was put
        self.zero_grad()

    @property
    def parameters(self) -> list[list[torch.Tensor]]:
        """The trained parameters of each agent, in the order of the flat row."""
        return self._rows

    @property
    def shapes(self) -> Shapes:
        """The shapes of the parameters in a row, their axes as they lie in memory (channels_last: the last)."""
        return tuple(
            tuple(
                size for _, size in sorted(zip(_strides(p), p.shape, strict=True), key=lambda axis: -axis[0])
            )
            for p in self._rows[0]
        )

    @property
    def signature(self) -> str:
        """A hash of shapes and layouts: equal for agents whose flat rows mean the same."""
        layout = [(tuple(p.shape), _strides(p)) for p in self._rows[0]]
        return hashlib.sha256(repr(layout).encode()).hexdigest()[:16]

    def empty(self) -> torch.Tensor:
        """Return uninitialised ``[rows, dimension]``, each row aligned like an allocation of its own."""
        step = ALIGNMENT // self.dtype.itemsize
        stride = -(-self.dimension // step) * step if len(self._rows) > 1 else self.dimension
        return torch.empty(len(self._rows), stride, dtype=self.dtype, device=self.device)[:, : self.dimension]

    def read(self) -> torch.Tensor:
        """Return a copy of the current parameters, ``[rows, dimension]``."""
        values = self.empty()
        for parameters, row in zip(self._rows, values, strict=True):
            for parameter, view in zip(parameters, _views(parameters, row), strict=True):
                view.copy_(parameter.detach())
        return values

    def point_at(self, values: torch.Tensor) -> None:
        """Make the parameters views of ``values``, whose numbers they take."""
        self._places = []
        for parameters, row in zip(self._rows, values, strict=True):
            for parameter, view in zip(parameters, _views(parameters, row), strict=True):
                parameter.data = view
                self._places.append((parameter, view.data_ptr()))

    def zero_grad(self) -> None:
        """Set every gradient to zero and make it a view of ``grad``."""
        self.grad.zero_()
        for parameters, views in zip(self._rows, self._grad_views, strict=True):
            for parameter, view in zip(parameters, views, strict=True):
                parameter.grad = view

    def collect_grad(self, owner: str) -> torch.Tensor:
        """Return ``grad``, completed by gradients that live elsewhere; a missing one is zero.

        Raises:
            ArgumentError: A parameter has been unfrozen or converted since the optimizer was built.
        """
        for parameter in self.frozen:
            if parameter.requires_grad:
                raise ArgumentError(
                    f"`params` of {owner}: a parameter of shape {list(parameter.shape)} was frozen when the "
                    "optimizer was built, but is trainable now; build the optimizer after unfreezing."
                )
        for parameter, place in self._places:
            if parameter.data_ptr() != place:
                raise ArgumentError(
                    f"`params` of {owner}: a parameter of shape {list(parameter.shape)} has been moved or converted "
                    "since the optimizer was built; convert the model (device, dtype, memory format) before."
                )
        for parameters, views in zip(self._rows, self._grad_views, strict=True):
            for parameter, view in zip(parameters, views, strict=True):
                if parameter.grad is None:
                    view.zero_()
                elif parameter.grad.data_ptr() != view.data_ptr():
                    view.copy_(parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad)
        return self.grad


def parameter_groups(params: Any, owner: str) -> list[dict[str, Any]]:
    """Return what the user gave as ``params`` as a list of groups with a list under ``"params"``.

    Raises:
        ArgumentError: It is neither parameters nor groups of them.
    """
    items: list[Any] = (
        list(params) if isinstance(params, Iterable) and not isinstance(params, torch.Tensor) else []
    )
    if not items and isinstance(params, Iterable):
        raise ArgumentError(
            f"`params` of {owner} is empty: the model has no parameters; there is nothing to train."
        )
    groups = [dict(item) for item in items] if all(isinstance(i, Mapping) for i in items) else []
    if items and not groups:
        groups = [{"params": items}]
    for group in groups:
        given = group.get("params", ())
        found = [given] if isinstance(given, torch.Tensor) else list(given)
        group["params"] = [item[1] if isinstance(item, tuple) else item for item in found]
        if not all(isinstance(item, torch.Tensor) for item in group["params"]):
            groups = []
            break
    if not groups:
        raise ArgumentError(
            f"`params` of {owner} must be parameters or groups of them, as for torch.optim.SGD, "
            f"but got {type(params).__name__}; pass model.parameters()."
        )
    return groups


def _trainable(groups: Sequence[Sequence[torch.Tensor]]) -> list[list[torch.Tensor]]:
    seen: set[int] = set()
    result = []
    for group in groups:
        fresh = [p for p in dict.fromkeys(group) if p.requires_grad and id(p) not in seen]
        seen.update(id(p) for p in fresh)
        result.append(fresh)
    return result


def _check(rows: Sequence[Sequence[torch.Tensor]], owner: str) -> None:
    if not rows or not rows[0]:
        raise ArgumentError(f"`params` of {owner} holds nothing to train; unfreeze a parameter first.")
    first = rows[0][0]
    if first.dtype not in (torch.float32, torch.float64):
        raise ArgumentError(
            f"`params` of {owner} must be float32 or float64, because trackers drift in shorter formats, but "
            f"are {first.dtype}; keep the model in float32 and use torch.autocast, or send "
            "short messages (`links` of Network)."
        )
    shapes = [p.shape for p in rows[0]]
    for row in rows:
        for p in row:
            if p.dtype != first.dtype or p.device != first.device:
                raise ArgumentError(
                    f"`params` of {owner} must share one dtype and device, but {first.dtype} on {first.device} "
                    f"and {p.dtype} on {p.device} occur; convert the model first."
                )
        if [p.shape for p in row] != shapes:
            raise ArgumentError(
                f"`models` of {owner} must have the same parameters, but their shapes differ; copy one model."
            )


def _views(parameters: Sequence[torch.Tensor], row: torch.Tensor) -> list[torch.Tensor]:
    views, first = [], row.storage_offset()
    for parameter in parameters:
        views.append(row.as_strided(parameter.shape, _strides(parameter), first))
        first += parameter.numel()
    return views


def _strides(parameter: torch.Tensor) -> tuple[int, ...]:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    kept = formats.get(parameter.dim())
    if kept is not None and parameter.is_contiguous(memory_format=kept):
        return parameter.stride()
    return torch.empty(parameter.shape, device="meta").stride()


def nonfinite_rows(rows: torch.Tensor) -> list[int]:
    """Return the rows of ``[rows, width]`` that hold a number that is not finite, without copying them.

    >>> nonfinite_rows(torch.tensor([[1.0, 2.0], [float("inf"), 0.0], [3e38, 3e38]]))
    [1]
    """
    if rows.sum(1).isfinite().all():  # one pass; a sum of finite numbers may overflow, so it is no proof
        return []
    return [i for i, row in enumerate(rows) if not all(part.isfinite().all() for part in row.split(PIECE))]
