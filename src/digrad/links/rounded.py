"""Messages in a shorter format, exactly: what is rounded is the change of an estimate, never the estimate itself."""

from dataclasses import dataclass
from typing import Any

from digrad import checks
from digrad.arrays import cast, cast_like, zeros_like
from digrad.types import Array

FORMATS = {"float16": 2, "bfloat16": 2, "float32": 4}  # bytes of a number


@dataclass(frozen=True)
class Rounded:
    r"""Numbers travel in a shorter format; made by :func:`rounded`.

    An estimate x is coded against a reference h that both ends keep, which follows it:

    .. math::
        h^{k} = h^{k-1} + Q(x^k - h^{k-1}), \qquad h^0 = x^0 \text{ (the first message travels in full)}

    and receivers use h. A tracker that is pushed alone vanishes, so it is rounded as it is, and its sender keeps what
    it did not send. Either way nothing is lost: what was rounded off is said later.
    """

    dtype: str

    def open(self, x: Array, *, keeps_reference: bool) -> Any:
        """Return the reference, or None if there is none."""
        return zeros_like(x) if keeps_reference else None

    def send(self, state: Any, x: Array) -> Array:
        """Round the change of x, or x itself."""
        return cast(x if state is None else x - state, self.dtype)

    def arrive(self, state: Any, wire: Array, like: Array) -> tuple[Any, Array]:
        """Add the change to the reference."""
        said = cast_like(wire, like)
        if state is None:
            return None, said
        after = state + said
        return after, after

    def first(self, state: Any, x: Array) -> tuple[Any, Array]:
        """Take the first estimate in full; a tracker is always rounded."""
        return (None, cast_like(cast(x, self.dtype), x)) if state is None else (x, x)

    def wire_bytes(self, numbers: int, itemsize: int) -> int:
        """Return the size of the numbers in the shorter format."""
        return numbers * min(itemsize, FORMATS[self.dtype])


def rounded(dtype: str) -> Rounded:
    """Return links that carry numbers as ``"bfloat16"``, ``"float16"`` or ``"float32"``.

    Example:
        >>> import digrad as dg
        >>> network = dg.Network(dg.graphs.example5(), links=rounded("bfloat16"))
        >>> method, problem = dg.CGT(step_size=0.05, threshold=2.0), dg.problems.example_quadratic()
        >>> dg.simulate(method, problem, network, steps=500).verdict  # exact, at a quarter of the traffic
        'converged'
    """
    checks.choice(dtype, "dtype", "rounded", FORMATS)
    return Rounded(dtype)
