"""An optax transform as a direction, for the simulator."""

from dataclasses import dataclass
from typing import Any

from digrad.errors import ArgumentError
from digrad.types import Array


def from_optax(transform: Any) -> "OptaxDirection":
    """Return the direction of an optax gradient transformation, such as ``optax.adam(1e-3)``.

    Every agent has a memory of its own, a row of numbers in the precision of the run (counters included).

    Args:
        transform: Anything with optax's ``init(params)`` and ``update(updates, state, params)``.

    Raises:
        ArgumentError: It is no transformation.
    """
    if not callable(getattr(transform, "init", None)) or not callable(getattr(transform, "update", None)):
        raise ArgumentError(
            f"`transform` of from_optax must be an optax transformation such as optax.adam(1e-3), but got "
            f"{type(transform).__name__}."
        )
    return OptaxDirection(transform)


@dataclass(frozen=True, eq=False)
class OptaxDirection:
    """See :func:`from_optax`."""

    transform: Any

    def init(self, x: Array) -> Array:
        """Return what the transform remembers at the start, one row per agent."""
        import jax

        _refuse_torch(x)
        return jax.vmap(lambda row: _packed(self.transform.init(row), row.dtype))(jax.numpy.asarray(x))

    def update(self, tracked: Array, memory: Array, x: Array) -> tuple[Array, Array]:
        """Return what the transform makes of each agent's clipped tracker."""
        import jax

        form = jax.eval_shape(self.transform.init, x[0])

        def one(tracked: Any, memory: Any, x: Any) -> tuple[Any, Any]:
            move, after = self.transform.update(tracked, _unpacked(memory, form), x)
            return move, _packed(after, memory.dtype)

        return jax.vmap(one)(tracked, memory, x)


def _packed(tree: Any, dtype: Any) -> Any:
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


def _unpacked(row: Any, form: Any) -> Any:
    import jax

    leaves, first = [], 0
    for leaf in jax.tree.leaves(form):
        leaves.append(row[first : first + leaf.size].reshape(leaf.shape).astype(leaf.dtype))
        first += leaf.size
    return jax.tree.unflatten(jax.tree.structure(form), leaves)


def _refuse_torch(x: Array) -> None:
    if type(x).__module__.partition(".")[0] == "torch":
        raise ArgumentError("`direction` made by from_optax is for the simulator; use from_torch with torch.")
