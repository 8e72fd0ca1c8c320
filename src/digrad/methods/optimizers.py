"""Optimizers of other libraries as directions: an optax transformation in the simulator, a torch optimizer in torch.

Every agent runs the optimizer for itself, on its tracker in place of a gradient, parameter by parameter with their
shapes. What it remembers is a row of numbers in the state of the method, and hence part of checkpoints. Neither library
is imported before it is used.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from digrad.arrays import split_columns
from digrad.errors import ArgumentError
from digrad.types import Array, Shapes


@dataclass(frozen=True, eq=False)
class from_optax:
    """The direction of an optax gradient transformation, such as ``optax.adam(1e-3)``, for the simulator.

    Args:
        transform: Anything with optax's ``init(params)`` and ``update(updates, state, params)``. Its learning rate
            counts, multiplied by the ``step_size`` of the method.

    Raises:
        ArgumentError: It is no transformation.
    """

    transform: Any

    vanishes = None

    def __post_init__(self) -> None:
        """Check the transformation."""
        if not all(callable(getattr(self.transform, name, None)) for name in ("init", "update")):
            raise ArgumentError(
                f"`transform` of from_optax must be an optax transformation such as optax.adam(1e-3), but got "
                f"{type(self.transform).__name__}."
            )

    def init(self, x: Array, shapes: Shapes) -> Array:
        """Return what the transform remembers at the start, one row per agent."""
        import jax

        if type(x).__module__.partition(".")[0] == "torch":
            raise ArgumentError(
                "`direction` made by from_optax is for the simulator; use from_torch with torch."
            )
        return jax.vmap(lambda row: _row(self.transform.init(split_columns(row, shapes)), row.dtype))(
            jax.numpy.asarray(x)
        )

    def update(self, y: Array, memory: Array, x: Array, shapes: Shapes) -> tuple[Array, Array]:
        """Return what the transform makes of each agent's tracker."""
        import jax
        import jax.numpy as jnp

        form = jax.eval_shape(lambda row: self.transform.init(split_columns(row, shapes)), x[0])

        def one(y: Any, memory: Any, x: Any) -> tuple[Any, Any]:
            kept = _tree(memory, form)
            move, after = self.transform.update(split_columns(y, shapes), kept, split_columns(x, shapes))
            return -jnp.concatenate([part.ravel() for part in move]), _row(after, memory.dtype)

        return jax.vmap(one)(y, memory, x)


@dataclass(frozen=True, eq=False)
class from_torch:
    """The direction of a torch optimizer, such as ``lambda params: torch.optim.Adam(params, lr=1e-3)``.

    Args:
        make: Returns an optimizer of the given parameters. What it does at a step must depend on nothing but the
            gradients, the parameters and the state it keeps, and its state must have the same entries from its first
            step on. Its learning rate counts, multiplied by the ``step_size`` of the method.

    Raises:
        ArgumentError: ``make`` cannot be called.
    """

    make: Callable[[list[Any]], Any]

    vanishes = None

    def __post_init__(self) -> None:
        """Check the function."""
        if not callable(self.make):
            raise ArgumentError(
                f"`make` of from_torch must be a function such as lambda params: torch.optim.Adam(params, lr=1e-3), "
                f"but got {type(self.make).__name__}."
            )

    def init(self, x: Array, shapes: Shapes) -> Array:
        """Return an empty memory: a first column that says whether there was a step, then what the state needs."""
        if type(x).__module__.partition(".")[0] != "torch":
            raise ArgumentError(
                "`direction` made by from_torch is for the torch engines; use from_optax in the simulator."
            )
        forms = _forms(self.make, shapes, x.dtype, x.device)
        return x.new_zeros((len(x), 1 + sum(entry.numel() for form in forms for entry in form.values())))

    def update(self, y: Array, memory: Array, x: Array, shapes: Shapes) -> tuple[Array, Array]:
        """Return what the optimizer makes of each agent's tracker."""
        import torch

        forms = _forms(self.make, shapes, x.dtype, x.device)
        direction, after = torch.empty_like(x), torch.ones_like(memory)
        for i, row in enumerate(memory):
            parameters = [torch.nn.Parameter(part.clone()) for part in split_columns(x[i], shapes)]
            optimizer = self.make(parameters)
            for parameter, part in zip(parameters, split_columns(y[i], shapes), strict=True):
                parameter.grad = part.clone()
            if row[0]:
                _restore(optimizer, parameters, row[1:], forms)
            optimizer.step()
            direction[i] = x[i] - torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
            after[i, 1:] = _kept(optimizer, parameters, forms, row)
        return direction, after


def _row(tree: Any, dtype: Any) -> Any:
    """Return all numbers of a tree as one row; counters are whole numbers of the run's precision."""
    import jax
    import jax.numpy as jnp

    leaves = jax.tree.leaves(tree)
    kinds = (jnp.floating, jnp.signedinteger, jnp.bool_)
    if not all(any(jnp.issubdtype(leaf.dtype, kind) for kind in kinds) for leaf in leaves):
        raise ArgumentError(
            "`transform` of from_optax keeps something that a row of floating-point numbers cannot hold, such as the "
            "key of random noise; leave that transformation out."
        )
    return jnp.concatenate([jnp.zeros(0, dtype), *(leaf.ravel().astype(dtype) for leaf in leaves)])


def _tree(row: Any, form: Any) -> Any:
    import jax

    leaves, structure = jax.tree.flatten(form)
    parts = split_columns(row, tuple(leaf.shape for leaf in leaves))
    kept = [part.astype(leaf.dtype) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, kept)


@functools.cache  # finding out takes a step of an optimizer
def _forms(make: Callable[[list[Any]], Any], shapes: Shapes, dtype: Any, device: Any) -> list[dict[str, Any]]:
    """Return, by parameter, the forms (without memory) of the tensors that an optimizer keeps after a first step."""
    import torch

    parameters = [torch.nn.Parameter(torch.zeros(shape, dtype=dtype, device=device)) for shape in shapes]
    optimizer = make(parameters)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return [
        {name: one.new_empty(()).expand(one.shape) for name, one in _tensors(optimizer.state[p]).items()}
        for p in parameters
    ]


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


def _kept(optimizer: Any, parameters: list[Any], forms: list[dict[str, Any]], like: Any) -> Any:
    """Return what an optimizer keeps as one row."""
    import torch

    states = [_tensors(optimizer.state[parameter]) for parameter in parameters]
    parts = [
        state[name].reshape(-1).to(like) for state, form in zip(states, forms, strict=True) for name in form
    ]
    return torch.cat([like[:0], *parts])


def _restore(optimizer: Any, parameters: list[Any], row: Any, forms: list[dict[str, Any]]) -> None:
    """Give an optimizer back what it kept."""
    shapes = tuple(tuple(entry.shape) for form in forms for entry in form.values())
    parts = iter(split_columns(row, shapes))
    for parameter, form in zip(parameters, forms, strict=True):
        optimizer.state[parameter] = {name: next(parts).to(entry).clone() for name, entry in form.items()}
