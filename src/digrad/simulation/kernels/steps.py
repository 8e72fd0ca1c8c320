"""The call of a compiled function, in place of a loop of steps."""

from typing import Any

import jax
import jax.numpy as jnp

from digrad.simulation.kernels.table import TARGET, Kernel, KernelArrays


def run_steps(
    kernel: Kernel,
    given: KernelArrays,
    method: Any,
    state: Any,
    problem_arrays: Any,
    limit: jax.Array,
    *,
    begin: jax.Array,
    count: jax.Array,
    schedules: dict[str, jax.Array],
    samples: jax.Array | None,
    after: jax.Array,
) -> tuple[Any, jax.Array, jax.Array]:
    """Run up to ``count`` steps; return the state, how many were run, and whether x is within the limit.

    Args:
        kernel: Which function.
        given: What stays fixed.
        method: Its hyper-parameters.
        state: Before, in the order x, y, g; its memory is written to.
        problem_arrays: Of the problem.
        limit: An entry of x above this has diverged.
        begin: The first iteration, counted in the chunk.
        count: At most so many steps.
        schedules: Hyper-parameters that change, by field, ``[iterations]``.
        samples: ``[iterations, n, batch]`` or None.
        after: What was measured of the state before, which must not be written to earlier.
    """
    x, dtype, (n, d) = state.x, state.x.dtype, state.x.shape
    hyper = [_table(schedules.get(name), getattr(method, name), n, dtype) for name in kernel.fields]
    one = lambda value, kind: jnp.asarray(value, kind).reshape(1)  # noqa: E731
    operands = (
        given.setup,
        one(begin, jnp.int64),
        one(count, jnp.int64),
        *(state.x, state.y, state.g),
        *given.pull,
        *given.push,
        one(limit, dtype),
        *hyper,
        *_of_problem(kernel.gradient, problem_arrays, samples),
        after,
    )
    whole = jax.ShapeDtypeStruct((n, d), dtype)
    shapes = [jax.ShapeDtypeStruct((2,), jnp.int64), *[whole] * 5, jax.ShapeDtypeStruct((n,), dtype)]
    call = jax.ffi.ffi_call(TARGET, shapes, input_output_aliases={3: 1, 4: 2, 5: 3})
    done, x, y, g, *_ = call(*operands)
    return type(state)(x=x, y=y, g=g), done[0], done[1] > 0


def _table(scheduled: jax.Array | None, constant: Any, n: int, dtype: Any) -> jax.Array:
    """Return a hyper-parameter as a table ``[1 or iterations, 1 or n]``."""
    table = jnp.asarray(constant, dtype)[None] if scheduled is None else scheduled.astype(dtype)
    return table.reshape(len(table), -1)


def _of_problem(gradient: str, arrays: Any, samples: jax.Array | None) -> tuple[Any, ...]:
    if gradient == "polynomial":
        return tuple(arrays)
    assert samples is not None
    data = (arrays["rows"],) * 2 if "rows" in arrays else (arrays["entries"], arrays["places"])
    return (*arrays["reg"], arrays["weights"], *data, samples.astype(jnp.int32))
