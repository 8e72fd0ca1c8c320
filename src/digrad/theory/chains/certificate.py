"""The certificate: what is proven about a run of CGT before it starts, with every number behind it."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from digrad._internal import checks
from digrad._internal.tables import Table, facts_html
from digrad.theory.chains import paper, repaired, sharp
from digrad.theory.chains.closure import Chain, Closed
from digrad.theory.chains.setting import Setting

Answer = Literal["holds", "fails", "not covered"]

CHAINS: dict[str, Chain] = {"sharp": sharp, "repaired": repaired, "paper": paper}
VALID = ("sharp", "repaired")  # the printed constants never decide a verdict
PRINTED = "printed constants, not all valid"
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
    "J. Zhang, T. He, S. Sra and A. Jadbabaie, Why gradient clipping accelerates training: a theoretical "
    "justification for adaptivity, ICLR 2020, arXiv:1905.11881 ((L0, L1)-smoothness)",
    "B. Zhang, J. Jin, C. Fang and L. Wang, Improved analysis of clipping algorithms for non-convex optimization, "
    "NeurIPS 2020 (the smoothness lemmas with A and B)",
    "S. Pu, W. Shi, J. Xu and A. Nedic, Push-pull gradient methods for distributed optimization in networks, 2020 "
    "(contraction norms)",
    "docs/theory.md: section 2 (norms), section 3 (chain `repaired`), section 4 (chain `sharp`), section 6 (errata)",
)


@dataclass(frozen=True, eq=False)
class ChainReport:
    """One chain of constants, at two step sizes: the largest certified one, and that of the certificate.

    Attributes:
        name: Of the chain.
        setting: The numbers that it starts from.
        largest: The chain at its largest certified step, alpha_max; None if there is none.
        at_step: The chain at the step that was asked for; if none was, at alpha_max (or at the smallest step tried).
        caveat: Why all figures are no more than indicative (mini-batches, estimated constants, printed
            constants), or an empty string.
    """

    name: str
    setting: Setting = field(repr=False)
    largest: Closed | None
    at_step: Closed
    caveat: str = ""

    @property
    def certified(self) -> bool:
        """Whether the step of ``at_step`` is proven to converge; never by the printed constants."""
        return self.conditions_hold and not self.caveat

    @property
    def conditions_hold(self) -> bool:
        """Whether the conditions of the chain hold at the step of ``at_step``, whatever they are worth."""
        return self.at_step.certified

    @property
    def why_not(self) -> str:
        """Why it is not certified, or an empty string."""
        return "; ".join(reason for reason in (self.caveat, self.at_step.failed) if reason)

    @property
    def why_not_briefly(self) -> str:
        """The caveat, or else the names of the conditions that fail, or else :attr:`why_not`."""
        return self.caveat or ", ".join(self.at_step.broken) or self.why_not

    @property
    def step_size_max(self) -> float | None:
        """alpha_max: the largest step at which the conditions hold, certified unless there is a caveat; or None."""
        return self.largest.step_size if self.largest else None

    def iterations(self, eps: float) -> float | None:
        """Return K(eps) at the step of ``at_step``, infinite beyond doubles; None if that is not certified."""
        return self._iterations(self.at_step, eps)

    def iterations_at_max(self, eps: float) -> float | None:
        """Return K(eps) at alpha_max; None if no step is certified."""
        return self._iterations(self.largest, eps)

    def _iterations(self, closed: Closed | None, eps: float) -> float | None:
        if closed is None or not closed.certified or self.caveat:
            return None
        return CHAINS[self.name].iterations(self.setting, closed.evaluation.total, closed.step_size, eps)

    def promises(self, closed: Closed | None) -> dict[str, Any]:
        """Return G and K(eps) at ``largest`` or ``at_step``: what is not certified or is infinite becomes None."""
        is_proven = closed is not None and closed.certified and not self.caveat
        return {
            "G": _finite(closed.grad_bound) if closed and is_proven else None,
            "K": {f"{eps:g}": _finite(self._iterations(closed, eps)) for eps in ACCURACIES},
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the figures by name: those at alpha_max, then those at ``step_size``; what is infinite becomes None.

        The constants are functions of G; without a G at which the conditions hold there are none.
        """
        evaluation = self.at_step.evaluation
        constants = evaluation.constants if self.conditions_hold else {}
        return {
            "alpha_max": self.step_size_max,
            "at_alpha_max": self.promises(self.largest),
            "step_size": self.at_step.step_size,
            "certified": self.certified,
            "conditions_hold": self.conditions_hold,
            "why_not": self.why_not,
            **self.promises(self.at_step),
            "conditions": {key: _finite(value) for key, value in evaluation.conditions.items()},
            "constants": {key: _finite(value) for key, value in constants.items()},
            "smoothness": self.setting.smoothness.to_dict(),
        }


@dataclass(frozen=True, eq=False)
class Certificate:
    """The answer of :func:`digrad.theory.certify`.

    Attributes:
        verdict: ``"holds"``, ``"fails"`` (the proof does, which says nothing of a run) or ``"not covered"``.
        label: Empty, or ``"indicative, not a certificate"``.
        reasons: Why the verdict is not ``"holds"``, or why the figures are only indicative.
        step_size: The step it is about: the one asked for, else the largest certified one of the valid chains.
        threshold: c0.
        chains: The report of each chain; empty if nothing could be computed.
        network: Figures of the network and of its norms, by name.
        start: X0, Y0 and D0.
        assumptions: What the theory supposes.
        references: Where it is proven.
    """

    verdict: Answer
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
        """The largest step of each chain: certified, unless the label says otherwise or the chain is ``paper``."""
        return {name: report.step_size_max for name, report in self.chains.items()}

    def iterations(self, eps: float, *, chain: str = "sharp") -> float | None:
        """Return K(eps): after so many steps some iterate had ||grad F|| <= eps.

        It is about the step that was asked for, and if none was, about the largest certified one of the chain. None
        if that step is not certified or nothing could be computed.
        """
        checks.positive(eps, "eps", "Certificate.iterations")
        checks.choice(chain, "chain", "Certificate.iterations", CHAINS)
        return self.chains[chain].iterations(eps) if self.chains else None

    def table(self) -> Table:
        """Return one row per chain: G and K(eps) at alpha_max, and whether the step is certified."""
        rows = []
        for name, report in self.chains.items():
            promised = report.promises(report.largest)
            counts = {f"K({eps})": count for eps, count in promised["K"].items()}
            rows.append(
                {
                    "chain": name,
                    "alpha_max": report.step_size_max,
                    "G": promised["G"],
                    **counts,
                    "certified": report.certified,
                    "why_not": report.why_not,
                }
            )
        return Table(tuple(rows))

    @property
    def headline(self) -> str:
        """The verdict, what it is about, and G and K(eps) of each chain that certifies the step asked for."""
        step = "none" if self.step_size is None else f"{self.step_size:.4g}"
        word = "not certified" if self.verdict == "fails" else self.verdict
        head = f"{word}: CGT with alpha = {step}, c0 = {_show(self.threshold)}"
        head += "; that does not mean that it fails" if self.verdict == "fails" else ""
        lines = [f"{head} ({self.label})" if self.label else head]
        for name, report in self.chains.items():
            if report.certified and report.at_step is not report.largest:
                lines.append(f"  {name}: at alpha = {step}, {_line(report.promises(report.at_step))}")
        return "\n".join(lines)

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

    def _repr_html_(self) -> str:
        """Return the verdict, its reasons and the table of the chains, for notebooks."""
        facts = {"verdict": self.headline, "reasons": "\n".join(self.reasons)}
        shown = {name: fact for name, fact in facts.items() if fact}
        return facts_html("Certificate", shown) + (self.table()._repr_html_() if self.chains else "")

    def __str__(self) -> str:
        """Return the verdict, its reasons and one line per chain."""
        lines = [self.headline, *(f"  {reason}" for reason in self.reasons)]
        for name, report in self.chains.items():
            largest = f"{name:<9} alpha_max = {_show(report.step_size_max)}"
            if name not in VALID:
                lines.append(f"{largest} (as printed; not valid)")
            elif report.largest is None or report.caveat:
                lines.append(largest)
            else:
                lines.append(f"{largest}, there {_line(report.promises(report.largest))}")
        return "\n".join(lines)


def _line(promised: dict[str, Any]) -> str:
    counts = ", ".join(f"K({eps}) = {_show(count)}" for eps, count in promised["K"].items())
    return f"G = {_show(promised['G'])}, {counts}"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _show(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
