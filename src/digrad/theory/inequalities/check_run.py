"""Every inequality of the theory, evaluated along one deterministic run."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt

from digrad._internal.tables import Table
from digrad.errors import ArgumentError
from digrad.network import Network
from digrad.problems import Problem
from digrad.theory.arguments import check_constants, check_problem, start_array
from digrad.theory.chains.certificate import CHAINS, VALID
from digrad.theory.chains.certification import choose_constants
from digrad.theory.chains.closure import close, without_proof
from digrad.theory.chains.setting import make_setting
from digrad.theory.constants.assumptions import Smoothness
from digrad.theory.constants.coverage import check_covered
from digrad.theory.constants.empirical import empirical_smoothness
from digrad.theory.constants.norms import network_norms
from digrad.theory.constants.smoothness import candidates
from digrad.theory.inequalities.local_rows import local_rows
from digrad.theory.inequalities.measured import Measured
from digrad.theory.inequalities.proof_rows import paper_rows, repaired_rows
from digrad.theory.inequalities.rows import ESTIMATES, Row
from digrad.theory.inequalities.sharp_rows import a_posteriori, sharp_rows
from digrad.theory.trajectory import run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REFUTED = "the run refutes the constants"


@dataclass(frozen=True, eq=False)
class RunCheck:
    """What the theory promised and what the run did.

    A run that violates an assumption on the losses (its lower bound, dissimilarity, smoothness) refutes the constants:
    nothing is certified then, whatever the step.

    Attributes:
        rows: One per inequality.
        posterior: The a-posteriori certificate, also the last of the rows.
        step_size: alpha.
        threshold: c0.
        steps: K.
        smoothness: The constants used.
        certified: Whether the step is certified, by chain; never by the printed constants of ``paper``, nor with
            constants that the run refutes.
        measured: The trajectory and its norms, for further questions.
    """

    rows: tuple[Row, ...] = field(repr=False)
    posterior: Row = field(repr=False)
    step_size: float
    threshold: float
    steps: int
    smoothness: Smoothness = field(repr=False)
    certified: dict[str, bool]
    measured: Measured = field(repr=False)

    @property
    def verdict(self) -> str:
        """``PASS`` unless an applicable row other than the paper's own is violated; ``FAIL`` then."""
        return "FAIL" if self.failures else "PASS"

    @property
    def failures(self) -> tuple[Row, ...]:
        """The violated rows of the repaired and sharp chains and of the assumptions."""
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
        rows = [
            {
                key: None if isinstance(value, float) and not math.isfinite(value) else value
                for key, value in row.items()
            }
            for row in self.table()
        ]
        return {
            "verdict": self.verdict,
            "step_size": self.step_size,
            "threshold": self.threshold if math.isfinite(self.threshold) else None,
            "steps": self.steps,
            "certified": self.certified,
            "constants": self.smoothness.to_dict(),
            "a_posteriori": {
                "measured": float(self.posterior.lhs[-1]),
                "bound": float(self.posterior.rhs[-1]),
            },
            "rows": rows,
        }

    def figures(self) -> "dict[str, Figure]":
        """Return one figure per row, by a name fit for a file."""
        from digrad.theory.drawing import row_figures

        return row_figures(self.rows)

    def __str__(self) -> str:
        """Return a table of all rows."""
        head = f"{self.verdict}: alpha = {self.step_size:.4g}, c0 = {self.threshold:.4g}, {self.steps} steps"
        return f"{head}\n{self.table()}"


def check_run(
    problem: Problem,
    network: Network,
    *,
    step_size: float,
    threshold: float,
    x0: npt.ArrayLike | None = None,
    steps: int = 1000,
    constants: Smoothness | Literal["empirical"] | None = None,
) -> RunCheck:
    """Run CGT with full gradients and evaluate every inequality of the theory along it.

    Args:
        problem: The losses; built-in, unless ``constants`` are given.
        network: Who hears whom.
        step_size: alpha.
        threshold: c0.
        x0: The start, ``[n, d]`` or ``[d]``; the problem's own by default.
        steps: K.
        constants: Smoothness constants; by default the closed form that certifies the largest step. ``"empirical"``
            estimates them along the run itself. With estimates no row that needs a certificate applies.

    Raises:
        ArgumentError: There are no constants or those of other agents, or the theory does not cover the network.
        RunDivergedError: The run leaves double precision.

    Example:
        >>> from digrad.graphs import example5
        >>> from digrad.problems import example_quadratic
        >>> check = check_run(example_quadratic(), Network(example5()), step_size=0.01, threshold=5.0, steps=200)
        >>> check.verdict, check.row("descent", "sharp").status
        ('PASS', 'PASS')
    """
    check_problem(problem, "check_run")
    check_constants(constants, problem, "check_run")
    check_covered(network, "check_run")
    path = run(problem, network, step_size=step_size, threshold=threshold, x0=x0, steps=steps)
    if isinstance(constants, str):
        constants = empirical_smoothness(problem, path.average).constants()
    start = start_array(problem, x0, "check_run")
    norms = network_norms(network)
    smooth = constants or choose_constants(problem, norms, threshold, start)
    setting = make_setting(problem, norms, smooth, threshold, start)
    measured = Measured(path, setting)
    assumptions = local_rows(measured)
    closed = {chain.name: close(chain, setting, step_size) for chain in CHAINS.values()}
    if not smooth.is_certifiable:
        closed = {name: without_proof(value, ESTIMATES) for name, value in closed.items()}
    elif any(row.status == "FAIL" for row in assumptions):
        closed = {name: without_proof(value, REFUTED) for name, value in closed.items()}
    posterior = a_posteriori(measured, [constants] if constants else candidates(problem))
    rows = (
        *assumptions,
        *sharp_rows(measured, closed["sharp"]),
        *repaired_rows(measured, closed["repaired"]),
        *paper_rows(measured, closed["paper"]),
        posterior,
    )
    certified = {name: value.certified and name in VALID for name, value in closed.items()}
    return RunCheck(
        rows, posterior, float(step_size), float(threshold), path.steps, smooth, certified, measured
    )
