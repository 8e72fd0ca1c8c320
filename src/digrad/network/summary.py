"""The figures that decide how well a network mixes, as a record, JSON and a table."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from digrad.graphs import Digraph, degree_imbalance, diameter, is_strongly_connected, roots
from digrad.network.circulant import circulant
from digrad.network.mixing_speed import rho, second_singular_value
from digrad.network.perron_vectors import DENSE_LIMIT
from digrad.network.weights import Mixing

Vector = npt.NDArray[np.float64]

NEAR_ONE = 1e-5
_LISTED = 10  # agents up to which the table lists every entry of u and v, and every root


@dataclass(frozen=True)
class NetworkSummary:
    """The figures of a network; ``None`` where one does not exist, or is not computed beyond 2000 agents.

    ``u`` and ``v`` are the Perron vectors of R and C; ``rho`` is the spectral radius without the Perron part;
    ``kappa`` the largest entry over the smallest positive one; ``gain`` = u'v/n multiplies the step size of push-pull
    methods; ``sinks`` are the agents that all others reach along C; ``norm_W`` is ||W - 1 1'/n||_2; ``no_column``
    says why there is no C, if there is none; ``changes`` how the network changes with time, if it does.
    """

    n: int
    n_edges: int
    strongly_connected: bool
    n_roots: int
    roots: tuple[int, ...] | None
    degree_imbalance: int
    diameter: int | None
    u: tuple[float, ...] | None
    u_min: float
    u_max: float
    v: tuple[float, ...] | None
    v_min: float | None
    v_max: float | None
    u_dot_v: float | None
    gain: float | None
    sinks: tuple[int, ...] | None
    kappa_u: float
    kappa_v: float | None
    rho_R: float | None  # noqa: N815
    rho_C: float | None  # noqa: N815
    rho_W: float | None  # noqa: N815
    norm_W: float | None  # noqa: N815
    no_column: str | None = None
    names: tuple[str, ...] | None = None
    changes: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures by name, ready for JSON; ``roots``, ``u`` and ``v`` are lists."""
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()
        }

    def lines(self) -> dict[str, str]:
        """Return the figures as text, by what they are called."""
        return {
            **({"changes with time": self.changes} if self.changes else {}),
            "agents": str(self.n),
            "edges": str(self.n_edges),
            "strongly connected": "yes" if self.strongly_connected else "no",
            "roots": self._show_agents(self.n_roots, self.roots),
            "degree imbalance": str(self.degree_imbalance),
            "diameter": self._show(self.diameter, "none (not strongly connected)"),
            "u (Perron of R)": self._show_vector(self.u, self.u_min, self.u_max),
            **self._column_rows(),
            "rho_W": self._show(self.rho_W, "no doubly stochastic weights"),
            "||W - J||": self._show(self.norm_W, "no doubly stochastic weights"),
        }

    def __str__(self) -> str:
        """Return one aligned line per figure, and at the end why there is no C, if there is none."""
        lines = [f"{label:<20}{text}" for label, text in self.lines().items()]
        return "\n".join([*lines, *([f"C: not possible: {self.no_column}"] if self.no_column else [])])

    def _column_rows(self) -> dict[str, str]:
        rho_row = {"rho_R": self._show_rho(self.rho_R)}
        if self.v_min is None or self.v_max is None or self.u_dot_v is None:
            return {"kappa_u": f"{self.kappa_u:.6g}", **rho_row}
        return {
            "v (Perron of C)": self._show_vector(self.v, self.v_min, self.v_max),
            **({} if self.sinks is None else {"sinks": self._show_agents(len(self.sinks), self.sinks)}),
            "u.v": f"{self.u_dot_v:.6f}",
            "gain u.v/n": f"{self.gain:.6f}",
            "kappa_u, kappa_v": f"{self.kappa_u:.6g}, {self.kappa_v:.6g}",
            **rho_row,
            "rho_C": self._show_rho(self.rho_C),
        }

    def _show_agents(self, count: int, agents: tuple[int, ...] | None) -> str:
        few = agents is not None and self.n <= _LISTED
        named = [self.names[agent] if self.names else str(agent) for agent in agents or ()]
        return f"{count} ({', '.join(named)})" if few else str(count)

    def _show_vector(self, vector: tuple[float, ...] | None, smallest: float, largest: float) -> str:
        if vector is None or self.n > _LISTED:
            return f"{smallest:.6g} to {largest:.6g}"
        names = [f"{name} " for name in self.names] if self.names else [""] * self.n
        return ", ".join(f"{name}{entry:.4g}" for name, entry in zip(names, vector, strict=True))

    def _show_rho(self, figure: float | None) -> str:
        if figure is None or not 1 - NEAR_ONE < figure < 1:
            return self._show(figure, "")
        return f"1 - {1 - figure:.3g}"  # rounded to six digits it would be 1, which is never agreement

    def _show(self, figure: float | None, absent: str) -> str:
        if figure is None:
            return f"not computed (n > {DENSE_LIMIT})" if self.n > DENSE_LIMIT else absent
        return str(figure) if isinstance(figure, int) else f"{figure:.6f}"


def summarize(
    graph: Digraph,
    R: Mixing,
    u: Vector,
    *,
    C: Mixing | None = None,
    v: Vector | None = None,
    W: Mixing | None = None,
    no_column: str | None = None,
) -> NetworkSummary:
    """Return the figures of weights that exist: R with its Perron vector ``u`` and, if given, C with ``v``, W."""
    small = graph.n <= DENSE_LIMIT
    members = roots(graph)
    return NetworkSummary(
        n=graph.n,
        n_edges=graph.n_edges,
        strongly_connected=is_strongly_connected(graph),
        n_roots=len(members),
        roots=tuple(members.tolist()) if small else None,
        degree_imbalance=degree_imbalance(graph),
        diameter=diameter(graph),
        u=tuple(u.tolist()) if small else None,
        u_min=float(u.min()),
        u_max=float(u.max()),
        v=tuple(v.tolist()) if small and v is not None else None,
        v_min=None if v is None else float(v.min()),
        v_max=None if v is None else float(v.max()),
        u_dot_v=None if v is None else float(u @ v),
        gain=None if v is None else float(u @ v) / graph.n,
        sinks=tuple(np.flatnonzero(v > 0).tolist()) if small and v is not None else None,
        kappa_u=float(u.max() / u[u > 0].min()),
        kappa_v=None if v is None else float(v.max() / v[v > 0].min()),
        rho_R=rho(R) if small or circulant(R.matrix) else None,  # of circulant weights by a Fourier transform
        rho_C=rho(C) if C and (small or circulant(C.matrix)) else None,
        rho_W=rho(W) if W else None,
        norm_W=second_singular_value(W) if W else None,
        no_column=no_column,
        names=graph.names,
    )
