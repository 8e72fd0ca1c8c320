"""The table ``[problem.partition]`` of a specification: how samples are partitioned among agents."""

from typing import Any

from pydantic import model_validator

from digrad.data.partition import SCHEMES
from digrad.specs.graph_table import Seed
from digrad.specs.messages import Section, require_choice


class PartitionTable(Section):
    """``[problem.partition]``: how samples are partitioned; only a string when a scheme needs no arguments.

    Args:
        scheme: ``iid``, ``stratified``, ``sorted``, ``shards`` or ``dirichlet``.
        alpha: Concentration of ``dirichlet``.
        shards_per_agent: Shards per agent of ``shards``.
        seed: Random seed of the random schemes.
    """

    scheme: str
    alpha: float | None = None
    shards_per_agent: int | None = None
    seed: Seed = 0

    @model_validator(mode="after")
    def _check(self) -> "PartitionTable":
        require_choice(self.scheme, SCHEMES, "scheme")
        return self


def as_partition(value: Any) -> Any:
    """Return the table that a value stands for: the name of a scheme is one without arguments."""
    return {"scheme": value} if isinstance(value, str) else value
