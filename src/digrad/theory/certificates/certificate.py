"""The certificate: what is proven about a run before it starts, or from one of its states on."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad._internal.json_files import strict
from digrad._internal.tables import facts_html
from digrad.theory.certificates.instance import Start
from digrad.theory.certificates.proof import Proof
from digrad.theory.paper.printed_bound import Setting

Floats = npt.NDArray[np.floating]
Answer = Literal["holds", "fails", "not covered"]

ACCURACIES = (1e-1, 1e-2, 1e-3)
ASSUMPTIONS = (
    "F is bounded below by the stated number",
    "the f_i are L_i-smooth, and convex if the proof says so, where the run can go: built-in losses by their "
    "formulas, others by the constants that were given",
    "R is row-stochastic and C column-stochastic, both strongly connected, or together so if the network is periodic",
    "full gradients, messages that arrive as sent, exact arithmetic",
    "every agent moves by any multiple of its tracker up to its step size that respects its threshold: clipped, softly "
    "clipped, scheduled below the certified step, or skipping",
)
REFERENCES = (
    "docs/theory.md: section 1 (theorem and proof), section 4 (errata of the paper)",
    "S. M. Rump, Verification of positive definiteness, BIT 46, 2006 (the test that Psi < 0)",
    "Y. Bo and Y. Wang, Provably convergent decentralized optimization over directed graphs under generalized "
    "smoothness, 2026, arXiv:2601.03566 (the printed bound)",
)


@dataclass(frozen=True, eq=False)
class Certificate:
    """The answer of :func:`digrad.theory.certify` and :func:`digrad.theory.certify_state`.

    Attributes:
        verdict: ``"holds"``, ``"fails"`` (the proof does, which says nothing of a run) or ``"not covered"``.
        label: Empty, or ``"indicative, not a certificate"``.
        reasons: Why the verdict is not ``"holds"``, or why the figures are only indicative.
        step_size: The step it is about: the one asked for, else the largest certified one.
        threshold: c0; of several the largest.
        proof: Behind that step; None if there is none.
        largest: Behind the largest certified step; None if there is none, or it was not asked for.
        stable: The largest stable step of the run linearised at the minimum: no promise, the upper end; or None.
        costs: By which factors the certified step is below that, by cause.
        thresholds: The largest certified step at other thresholds.
        printed: The largest step of the paper's bound as printed, for comparison: several of its constants are invalid.
        setting: The paper's constants with the free parameter that allows this step; None unless explained.
        start: The state that it is about, with what was computed of the losses and the network; None if not covered.
        shares: The step of each agent relative to the largest, ``[n]``; None for schedules and smooth clipping,
            of whose number of steps nothing is said.
        assumptions: Assumptions of the theorem.
        references: Places of the proof.
    """

    verdict: Answer
    label: str
    reasons: tuple[str, ...]
    step_size: float | None
    threshold: float | None
    proof: Proof | None = field(default=None, repr=False)
    largest: Proof | None = field(default=None, repr=False)
    stable: float | None = None
    costs: dict[str, float] = field(default_factory=dict, repr=False)
    thresholds: dict[float, float | None] = field(default_factory=dict, repr=False)
    printed: float | None = None
    setting: Setting | None = field(default=None, repr=False)
    start: Start | None = field(default=None, repr=False)
    shares: Floats | None = field(default=None, repr=False)
    assumptions: tuple[str, ...] = field(default=ASSUMPTIONS, repr=False)
    references: tuple[str, ...] = field(default=REFERENCES, repr=False)

    @property
    def alpha_max(self) -> float | None:
        """The largest certified step, or None; no more than indicative if there is a label."""
        return self.largest.step_size if self.largest else None

    def iterations(self, eps: float) -> float | None:
        r"""Return K(eps): among so many steps some average had :math:`\|\nabla F\| \le` eps.

        Of CGT and AB; softly clipped steps are shorter. None if the step is not certified; infinite beyond doubles.
        """
        checks.positive(eps, "eps", "Certificate.iterations")
        proof = self.proof
        if proof is None or self.start is None or self.shares is None or self.label:
            return None
        return proof.iterations(self.start.phases, self.start.reach, self.shares, eps)

    @property
    def rate(self) -> float | None:
        r"""1 - 1/kappa: the factor by which V - n inf F falls in every step, at least from some step on; or None.

        What V exceeds n inf F by bounds :math:`n (F(\bar x_k) - \inf F)` from above.
        """
        if self.proof is None or self.shares is None or self.label or math.isinf(self.proof.contraction):
            return None
        return 1 - 1 / self.proof.contraction

    @property
    def headline(self) -> str:
        """The verdict and what it is about."""
        step = "none" if self.step_size is None else f"{self.step_size:.4g}"
        word = "not certified" if self.verdict == "fails" else self.verdict
        head = f"{word}: alpha = {step}, c0 = {_show(self.threshold)}"
        head += "; that does not mean that it fails" if self.verdict == "fails" else ""
        return f"{head} ({self.label})" if self.label else head

    def lines(self) -> list[str]:
        """Return what else is known, a line each: the largest certified step, the upper end, costs, thresholds."""
        found = []
        if self.largest or self.verdict != "not covered":
            word = "indicated" if self.label else "certified"
            found.append(
                f"{word}: every step up to {_show(self.alpha_max)}" if self.alpha_max else f"{word}: no step"
            )
        if self.proof and not self.label:
            counts = ", ".join(f"K({eps:g}) = {_show(self.iterations(eps))}" for eps in ACCURACIES)
            found.append(
                f"at alpha = {self.proof.step_size:.4g}: F(xbar_k) <= {self.proof.level:.6g} for all k; {counts}"
            )
        if self.rate is not None and self.proof:
            found.append(
                f"linear rate: V - n inf F, at least n (F(xbar_k) - inf F), falls by {1 - self.rate:.3g} of itself in "
                "a step that is not clipped" + ("" if math.isinf(self.proof.depth) else ", near the minimum")
            )
        if self.stable is not None:
            found.append(
                f"largest stable step near the minimum: {self.stable:.4g} (measured; no promise for the way there)"
            )
        if self.costs:
            causes = ", ".join(f"{cause} {factor:.2g}" for cause, factor in self.costs.items())
            found.append(f"the difference, factor by factor: {causes}")
        if self.thresholds:
            steps = ", ".join(f"c0 = {c0:g}: {_show(step)}" for c0, step in self.thresholds.items())
            found.append(f"certified steps at other thresholds: {steps}")
        if self.printed is not None:
            found.append(
                f"the paper's bound as printed (several constants are not valid): {self.printed:.4g}"
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON: what is infinite becomes None."""
        names = (
            "verdict", "label", "reasons", "step_size", "threshold", "alpha_max", "rate", "stable", "costs", "printed",
            "assumptions", "references",
        )  # fmt: skip
        return strict(
            {name: getattr(self, name) for name in names}
            | {
                "K": {f"{eps:g}": self.iterations(eps) for eps in ACCURACIES},
                "thresholds": {f"{c0:g}": step for c0, step in self.thresholds.items()},
                "proof": self.proof and self.proof.to_dict(),
                "largest": self.largest and self.largest.to_dict(),
            }
        )

    def _repr_html_(self) -> str:
        """Return the verdict, its reasons and the figures, for notebooks."""
        facts = {
            "verdict": self.headline,
            "reasons": "\n".join(self.reasons),
            "figures": "\n".join(self.lines()),
        }
        return facts_html("Certificate", {name: fact for name, fact in facts.items() if fact})

    def __str__(self) -> str:
        """Return the verdict, its reasons and the figures."""
        return "\n".join([self.headline, *(f"  {line}" for line in (*self.reasons, *self.lines()))])


def _show(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
