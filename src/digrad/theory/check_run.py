"""A check of one run: the step from which on it is proven to converge, and on request the paper's inequalities."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from digrad._internal.json_files import strict
from digrad._internal.tables import Table
from digrad.errors import ArgumentError
from digrad.network import Network
from digrad.problems import Problem
from digrad.theory.arguments import Given, check_covered
from digrad.theory.certificates.certificate import Certificate
from digrad.theory.certificates.instance import Instance, Start
from digrad.theory.certificates.proof import Proof
from digrad.theory.constants.empirical_smoothness import empirical_smoothness
from digrad.theory.inequality import Row
from digrad.theory.paper.inequalities import PaperCheck, measure, paper_rows
from digrad.theory.paper.printed_bound import Setting, largest_printed_step, make_setting
from digrad.theory.potential import certificate_rows
from digrad.theory.trajectory import Trajectory, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class RunCheck:
    """Proof about a run, and whether the run kept to it.

    Attributes:
        rows: One per inequality.
        proven_from: The step from which on the run is proven to converge; None if from none.
        proof: Proof for the state at that step.
        step_size: alpha.
        threshold: c0.
        steps: K.
        paper: The run in the quantities of the paper's proof, if that was asked for.
    """

    rows: tuple[Row, ...] = field(repr=False)
    proven_from: int | None
    proof: Proof | None = field(repr=False)
    step_size: float
    threshold: float
    steps: int
    paper: PaperCheck | None = field(default=None, repr=False)

    @property
    def verdict(self) -> str:
        """``PASS`` unless an applicable row other than the paper's own is violated; ``FAIL`` then."""
        return "FAIL" if self.failures else "PASS"

    @property
    def failures(self) -> tuple[Row, ...]:
        """The violated rows, except those with the printed constants of the paper."""
        return tuple(row for row in self.rows if row.chain != "paper" and row.status == "FAIL")

    def row(self, name: str, chain: str) -> Row:
        """Return the row of a chain whose name begins with ``name``."""
        found = [row for row in self.rows if row.chain == chain and row.name.startswith(name)]
        if not found:
            names = ", ".join(row.name for row in self.rows if row.chain == chain)
            raise ArgumentError(
                f"`name` of RunCheck.row must begin a row of chain {chain!r} ({names}), but got {name!r}."
            )
        return found[0]

    def table(self) -> Table:
        """Return one row per inequality."""
        return Table.of(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the curves, ready for JSON: figures that are not finite become None."""
        found = {
            "verdict": self.verdict,
            "step_size": self.step_size,
            "threshold": self.threshold,
            "steps": self.steps,
            "proven_from": self.proven_from,
            "proof": self.proof and self.proof.to_dict(),
            "rows": list(self.table()),
        }
        if self.paper:
            found["constants"] = self.paper.smoothness.to_dict()
        return strict(found)

    def figures(self) -> "dict[str, Figure]":
        """Return one figure per row, by a name fit for a file."""
        from digrad.plots.inequalities import row_figures

        return row_figures(self.rows)

    def __str__(self) -> str:
        """Return a table of all rows."""
        head = f"{self.verdict}: alpha = {self.step_size:.4g}, c0 = {self.threshold:.4g}, {self.steps} steps"
        return f"{head}\n{self.promise}\n{self.table()}"

    @property
    def promise(self) -> str:
        """The statement that is proven about the run."""
        if self.proven_from is None:
            return f"Not proven to converge from any of its first {self.steps} steps; that does not mean that it fails."
        return f"Proven to converge from step {self.proven_from} on."


def check_run(
    problem: Problem,
    network: Network,
    *,
    step_size: float,
    threshold: float,
    x0: npt.ArrayLike | None = None,
    steps: int = 1000,
    smoothness: Given | Literal["empirical"] = None,
    paper: bool = False,
    certificate: Certificate | None = None,
) -> RunCheck:
    """Run CGT with full gradients, find the step from which on it is proven to converge, and check that V falls.

    Args:
        problem: The losses; built-in, unless their ``smoothness`` is given.
        network: The network.
        step_size: alpha.
        threshold: c0.
        x0: The start: ``[n, d]``, ``[d]``, ``"zeros"`` or ``"normal"`` (of seed 0); the problem's own by default.
        steps: K.
        smoothness: Smoothness of losses not built in, as for :func:`~digrad.theory.certify`. ``"empirical"`` estimates
            constants along the run itself. With estimates no row that needs a certificate applies.
        paper: Whether to evaluate every inequality of the paper's proof too, with its constants as printed.
        certificate: What :func:`~digrad.theory.certify` answered about this start and threshold: its constants, norms
            and multipliers are used instead of computed again. Its smoothness counts.

    Raises:
        ArgumentError: There are no constants or those of other agents, the theory does not cover the network, or the
            certificate is about something else.
        RunDivergedError: The run leaves double precision.

    Example:
        >>> from digrad.graphs import example5
        >>> from digrad.problems import example_quadratic
        >>> check = check_run(example_quadratic(), Network(example5()), step_size=0.05, threshold=5.0, steps=200)
        >>> check.verdict, check.proven_from, check.row("V falls", "certificate").status
        ('PASS', 0, 'PASS')
    """
    start = certificate.start if certificate else None
    instance = start.instance if start else Instance.of(problem, network, smoothness, "check_run")
    check_covered(network, "check_run")
    path = run(problem, network, step_size=step_size, threshold=threshold, x0=x0, steps=steps)
    if start:
        _check_same(start, problem, network, path)
    elif isinstance(smoothness, str):
        instance = replace(instance, constants=empirical_smoothness(problem, path.average).constants())
    first, proof, rows = certificate_rows(instance, path, start)
    found = None
    if paper:
        known = certificate.setting if certificate else None
        found = measure(problem, path, known or _setting(instance, path))
        rows += paper_rows(found, is_refuted=any(row.status == "FAIL" for row in rows))
    return RunCheck(tuple(rows), first, proof, path.step_size, path.threshold, path.steps, found)


def _check_same(start: Start, problem: Problem, network: Network, path: Trajectory) -> None:
    """Raise unless a certificate begins where a run does."""
    is_same = start.instance.problem is problem and start.instance.network is network
    if not (is_same and np.array_equal(start.x, path.x[0]) and (start.reach == path.threshold).all()):
        raise ArgumentError(
            "`certificate` of check_run must be that of the same problem, network, x0 and threshold, but one of them "
            "differs; leave it out, or certify this run."
        )


def _setting(instance: Instance, path: Trajectory) -> Setting:
    """Return the paper's constants, of built-in losses with the free parameter that allows the largest step."""
    problem, norms, c0, x0 = instance.problem, instance.norms, path.threshold, path.x[0]
    if instance.constants:
        return make_setting(problem, norms, instance.constants, c0, x0)
    return largest_printed_step(problem, norms, c0, x0)[0]
