"""One inequality of the theory, evaluated along a run or on many states."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]

RELATIVE = 1e-9  # a ratio of at most 1 + RELATIVE passes; section 3 of docs/theory.md
JUST_ABOVE = (
    1 + RELATIVE
)  # the least ratio of a violated row: against a bound near zero lhs/rhs may round to 1


class Terms(NamedTuple):
    """Precondition of a row in words, and whether it is met."""

    needs: str = "-"
    is_met: bool = True


UNCONDITIONAL = Terms()
ESTIMATES = "constants are estimates"  # why a row that needs proven constants does not apply


@dataclass(frozen=True, eq=False)
class Row:
    """lhs <= rhs for every k, with what it needs and whether that is given.

    Attributes:
        name: Name of the inequality.
        chain: ``"certificate"``, or of the paper's proof ``"all"`` (its assumptions) or ``"paper"`` (its constants).
        lhs: One entry per k; of per-agent inequalities the entry of the worst agent.
        rhs: The bound, or one number for all k.
        terms: Its precondition.
        rounding: Rounding error of lhs: a number, or one per k, in the units of lhs.
        first: The k of the first entry.
    """

    name: str
    chain: str
    lhs: Floats = field(repr=False)
    rhs: Any = field(repr=False)
    terms: Terms = UNCONDITIONAL
    rounding: Any = field(default=0.0, repr=False)
    first: int = 0

    def __post_init__(self) -> None:
        """Give every k its bound."""
        object.__setattr__(self, "rhs", np.broadcast_to(self.rhs, self.lhs.shape).astype(float))

    @property
    def max_ratio(self) -> float:
        """The largest lhs/rhs, above 1 exactly where the bound is violated.

        It is negative where lhs is, 0 where both vanish to rounding, and 2 - lhs/rhs below a negative bound, which
        also grows with lhs and is 1 where they agree.
        """
        lhs, rhs, slack = self.lhs, self.rhs + 0.0, np.broadcast_to(self.rounding, self.lhs.shape)  # no -0.0
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = np.where(lhs <= slack, np.minimum(lhs, 0) / np.abs(rhs), lhs / rhs)
            ratio = np.where(rhs < 0, 2 - lhs / rhs, ratio)
        # What is left are infinite sides, 0/0 and what is no number: all decided by whether the row is violated.
        ratio = np.where(np.isnan(ratio), np.where(self.is_violated, np.inf, 0.0), ratio)
        return float(np.where(self.is_violated, np.maximum(ratio, JUST_ABOVE), np.minimum(ratio, 1.0)).max())

    @property
    def is_violated(self) -> npt.NDArray[np.bool_]:
        """A mask of the entries that exceed the bound by more than rounding, or are not numbers."""
        return _exceeds(self.lhs, self.rhs, self.rounding)

    @property
    def violations(self) -> int:
        """The number of entries that exceed the bound by more than rounding."""
        return int(np.sum(self.is_violated))

    @property
    def status(self) -> str:
        """INAPPLICABLE if the precondition is not met, whatever the numbers; else PASS without violations, or FAIL."""
        if not self.terms.is_met:
            return "INAPPLICABLE"
        return "PASS" if self.violations == 0 else "FAIL"

    def to_dict(self) -> dict[str, Any]:
        """Return the summary of the row, ready for JSON and tables."""
        return {
            "row": self.name,
            "chain": self.chain,
            "status": self.status,
            "max_ratio": self.max_ratio,
            "violations": self.violations,
            "entries": int(self.lhs.size),
            "needs": self.terms.needs,
        }


def worst_agent(lhs: Floats, rhs: Floats, rounding: Any = 0.0) -> tuple[Floats, Floats]:
    """Return, for each k, both sides of the agent that exceeds its bound most, or else comes closest to it.

    The excess is that of :attr:`Row.violations`, so that a violation is never hidden behind a bound of zero.

    Args:
        lhs: ``[..., n]``.
        rhs: ``[..., n]``.
        rounding: That of the row, a number or one per k.

    >>> lhs, rhs = worst_agent(np.array([[1e-17, 2.0]]), np.array([[0.0, 1.0]]))
    >>> lhs.tolist(), rhs.tolist()
    ([2.0], [1.0])
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        excess = np.nan_to_num(lhs - rhs - RELATIVE * np.abs(rhs), nan=np.inf)
        ratio = np.nan_to_num(np.where(rhs > 0, lhs / rhs, 0.0), nan=0.0)
    is_violated = _exceeds(lhs, rhs, np.asarray(rounding)[..., None])
    of_violators = np.where(is_violated, excess, -np.inf)
    key = np.where(is_violated.any(axis=-1, keepdims=True), of_violators, ratio)
    agent = np.argmax(key, axis=-1)[..., None]
    return np.take_along_axis(lhs, agent, -1)[..., 0], np.take_along_axis(rhs, agent, -1)[..., 0]


def _exceeds(lhs: Floats, rhs: Floats, rounding: Any) -> npt.NDArray[np.bool_]:
    """Return where lhs is above rhs by more than rounding, or a side is no number; nothing exceeds infinity."""
    with np.errstate(invalid="ignore"):
        bound = np.where(np.isinf(rhs), rhs, rhs + RELATIVE * np.abs(rhs) + rounding)  # not -inf + inf
        return ~(lhs <= bound)
