"""What stored JSON files must hold to be shown: people edit them by hand."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Environment:
    """``environment.json``: where and when a run was made."""

    format: str
    started: str | None = None
    finished: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Headline:
    """Figures of one row; None if not finite."""

    loss: float | None
    grad_norm: float | None
    consensus_error: float | None


@dataclass(frozen=True)
class Ended:
    """How a method ended: one entry of ``summary.json``."""

    verdict: str
    diverged_at: int | None
    steps: int
    final: Headline
    best: Headline
    bytes_sent: int
    seconds: float


@dataclass(frozen=True)
class Labels:
    """How often each agent has each label."""

    names: list[str]
    counts: list[list[int]]


@dataclass(frozen=True)
class Plane:
    """The loss on a grid."""

    across: list[float]
    up: list[float]
    values: list[list[float | None]]


@dataclass(frozen=True)
class Minimum:
    """The smallest loss, and where it is if that can be drawn."""

    loss: float | None
    x: list[float] | None = None


@dataclass(frozen=True)
class ShownProblem:
    """The problem in ``setting.json``."""

    agents: int
    samples: list[int] | None
    labels: Labels | None
    minimum: Minimum | None
    plane: Plane | None


@dataclass(frozen=True)
class ShownNetwork:
    """The network in ``setting.json``."""

    n: int
    arcs: list[tuple[int, int]] | None
    figures: str | None


@dataclass(frozen=True)
class Setting:
    """``setting.json``; empty for a run that was stored without."""

    problem: ShownProblem | None = None
    network: ShownNetwork | None = None


@dataclass(frozen=True)
class StoredVerdict:
    """What is certified."""

    verdict: str
    label: str | None
    step_size: float | None
    threshold: float | None
    alpha_max: float | None
    stable: float | None
    K: Mapping[str, float | None]
    reasons: list[str]


@dataclass(frozen=True)
class StoredCertificate:
    """``certificate.json``."""

    method: str
    certificate: StoredVerdict
    notice: str | None
    diverged_at: int | None
    check: Mapping[str, Any] | None


@dataclass(frozen=True)
class SweptRows:
    """The table of a reproduction without runs."""

    rows: list[Mapping[str, Any]]
