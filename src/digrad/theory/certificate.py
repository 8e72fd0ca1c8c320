"""The certificate: what is proven about a run of CGT before it starts, with every number behind it."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from digrad import checks
from digrad.theory import paper, repaired, sharp
from digrad.theory.closure import Chain, Closed
from digrad.theory.setting import Setting

Verdict = Literal["holds", "fails", "not covered"]

CHAINS: dict[str, Chain] = {"sharp": sharp, "repaired": repaired, "paper": paper}
ACCURACIES = (1e-1, 1e-2, 1e-3)
ASSUMPTIONS = (
    "F is bounded below by the stated number",
    "each f_i is twice differentiable and (L0_i, L1_i)-smooth, F is (L0_F, L1_F)-smooth",
    "||grad f_i - grad F|| <= (ell - 1) ||grad F|| + b everywhere",
    "R is row-stochastic with a root, C column-stochastic and strongly connected, both with positive diagonals",
    "full gradients, fixed network, constant step size and threshold, exact arithmetic",
)
REFERENCES = (
    "Y. Bo and Y. Wang, Provably convergent decentralized optimization over directed graphs under generalized "
    "smoothness, 2026, arXiv:2601.03566 (chain `paper`)",
    "B. Zhang, J. Jin, C. Fang and L. Wang, Improved analysis of clipping algorithms for non-convex optimization, "
    "2020 ((L0, L1)-smoothness)",
    "S. Pu, W. Shi, J. Xu and A. Nedic, Push-pull gradient methods for distributed optimization in networks, 2020 "
    "(contraction norms)",
    "docs/theory.md: section 2 (norms), section 3 (chain `repaired`), section 4 (chain `sharp`), section 6 (errata)",
)


@dataclass(frozen=True, eq=False)
class ChainReport:
    """One chain of constants: its largest certified step, and the step that was asked for.

    With a ``caveat`` (mini-batches, estimated constants, a changing network) all figures are indicative.
    """

    name: str
    setting: Setting = field(repr=False)
    largest: Closed | None
    at_step: Closed
    caveat: str = ""

    @property
    def certified(self) -> bool:
        """Whether the step of the certificate is proven to converge."""
        return self.at_step.certified and not self.caveat

    @property
    def why_not(self) -> str:
        """Why it is not certified, or an empty string."""
        return "; ".join(reason for reason in (self.caveat, self.at_step.failed) if reason)

    @property
    def step_size_max(self) -> float | None:
        """The largest certified step size (indicative, if there is a caveat); None if there is none."""
        return self.largest.step_size if self.largest else None

    def iterations(self, eps: float) -> float | None:
        """Return K(eps) at the step of the certificate, infinite beyond doubles; None if that is not certified."""
        if not self.certified:
            return None
        total = self.at_step.evaluation.total
        return CHAINS[self.name].iterations(self.setting, total, self.at_step.step_size, eps)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures by name; what is infinite becomes None."""
        constants = {key: _finite(value) for key, value in self.at_step.evaluation.constants.items()}
        return {
            "alpha_max": self.step_size_max,
            "certified": self.certified,
            "why_not": self.why_not,
            "G": _finite(self.at_step.grad_bound),
            "conditions": {key: _finite(value) for key, value in self.at_step.evaluation.conditions.items()},
            "K": {f"{eps:g}": _finite(self.iterations(eps)) for eps in ACCURACIES},
            "constants": constants,
            "smoothness": self.setting.smoothness.to_dict(),
        }


@dataclass(frozen=True, eq=False)
class Certificate:
    """The answer of :func:`digrad.theory.certify`.

    Attributes:
        verdict: ``"holds"``, ``"fails"`` or ``"not covered"``.
        label: Empty, or ``"indicative, not a certificate"``.
        reasons: Why the verdict is not ``"holds"``, or why the figures are only indicative.
        step_size: The step it is about: the one asked for, else the largest certified one.
        threshold: c0.
        chains: The report of each chain; empty if nothing could be computed.
        network: Figures of the network and of its norms, by name.
        start: X0, Y0 and D0.
        assumptions: What the theory supposes.
        references: Where it is proven.
    """

    verdict: Verdict
    label: str
    reasons: tuple[str, ...]
    step_size: float | None
    threshold: float | None
    chains: dict[str, ChainReport] = field(default_factory=dict, repr=False)
    network: dict[str, Any] = field(default_factory=dict, repr=False)
    start: dict[str, float] = field(default_factory=dict, repr=False)
    assumptions: tuple[str, ...] = field(default=ASSUMPTIONS, repr=False)
    references: tuple[str, ...] = field(default=REFERENCES, repr=False)

    @property
    def alpha_max(self) -> dict[str, float | None]:
        """The largest certified step size of each chain; indicative, if the label says so."""
        return {name: report.step_size_max for name, report in self.chains.items()}

    def iterations(self, eps: float, *, chain: str = "sharp") -> float | None:
        """Return K(eps): after so many steps some iterate had ||grad F|| <= eps; None if the step is not certified."""
        checks.positive(eps, "eps", "Certificate.iterations")
        checks.choice(chain, "chain", "Certificate.iterations", self.chains)
        return self.chains[chain].iterations(eps)

    def table(self) -> list[dict[str, Any]]:
        """Return one dictionary per chain, for tables."""
        return [
            {
                "chain": name,
                "alpha_max": report.step_size_max,
                "certified": report.certified,
                "G": _finite(report.at_step.grad_bound),
                **{f"K({eps:g})": _finite(report.iterations(eps)) for eps in ACCURACIES},
                "why_not": report.why_not,
            }
            for name, report in self.chains.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {
            "verdict": self.verdict,
            "label": self.label,
            "reasons": list(self.reasons),
            "step_size": self.step_size,
            "threshold": _finite(self.threshold),
            "alpha_max": self.alpha_max,
            "chains": {name: report.to_dict() for name, report in self.chains.items()},
            "network": self.network,
            "start": self.start,
            "assumptions": list(self.assumptions),
            "references": list(self.references),
        }

    def __str__(self) -> str:
        """Return the verdict, its reasons and one line per chain."""
        step = "none" if self.step_size is None else f"{self.step_size:.4g}"
        head = f"{self.verdict}: CGT with alpha = {step}, c0 = {_show(self.threshold)}"
        lines = [
            f"{head} ({self.label})" if self.label else head,
            *(f"  {reason}" for reason in self.reasons),
        ]
        for row in self.table():
            note = " (as printed; not valid)" if row["chain"] == "paper" else ""
            counts = ", ".join(f"K({eps:g}) = {_show(row[f'K({eps:g})'])}" for eps in ACCURACIES)
            lines.append(
                f"{row['chain']:<9} alpha_max = {_show(row['alpha_max'])}, G = {_show(row['G'])}, {counts}{note}"
            )
        return "\n".join(lines)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _show(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
