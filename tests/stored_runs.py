"""Run directories written by hand, so that tests of pages need no run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from digrad._internal.json_files import write_json
from digrad.specs import Spec, parse_spec
from digrad.specs.run_directory import open_run
from digrad.trace import Ensemble, Trace

NETWORK = {
    "n": 3,
    "names": ["left", "top", "right"],
    "n_edges": 3,
    "edges": [[0, 1], [1, 2], [2, 0]],
    "period": 1,
    "figures": "agents  3",
    "u": [1.2, 0.9, 0.9],
    "v": [0.8, 1.1, 1.1],
    "R": [0.5, 0.25, 0.75],
    "R_self": [0.5, 0.75, 0.25],
    "C": [0.4, 0.3, 0.2],
    "C_self": [0.6, 0.7, 0.8],
}
SETTING = {
    "problem": {
        "name": "by hand",
        "agents": 3,
        "dim": 7,
        "samples": [10, 20, 30],
        "labels": {"names": ["0", "1"], "counts": [[10, 0], [5, 15], [0, 30]]},
        "minimum": {"loss": 0.25, "grad_norm": 0.0},
        "plane": None,
    },
    "network": NETWORK,
}


def trace(
    name: str, *, rows: int = 200, rate: float = 0.02, diverges: bool = False, seed: int = 0, **columns: Any
) -> Trace:
    """A run whose loss decays to 0.25, or explodes after three steps."""
    k = np.arange(4 if diverges else rows)
    wave = 1 + 0.1 * np.cos(k + seed)
    decay = 10.0 ** (60 * k) if diverges else np.exp(-rate * k) * wave
    found = {
        "k": k,
        "loss": 0.25 + decay,
        "grad_norm": decay,
        "consensus_error": decay / 10,
        "fraction_clipped": np.minimum(1.0, decay),
        "bytes_sent": 120 * k,
        **columns,
    }
    return Trace(
        name=name,
        columns=found,
        final_x=np.zeros((3, 7)),
        verdict="diverged" if diverges else "not converged",
        diverged_at=3 if diverges else None,
        steps=int(k[-1]),
        seconds=2.5 + seed,
        facts={"seed": seed},
    )


def store(
    folder: Path,
    results: Mapping[str, Trace | Ensemble],
    *,
    spec: Spec | None = None,
    setting: Mapping[str, Any] | None = SETTING,
) -> Path:
    """Write a run directory that holds these results, as if ``spec`` had been run."""
    run = open_run(folder, spec or _spec(results))
    for result in results.values():
        result.save(run.path)
    run.write_summary(results)
    if setting is not None:
        write_json(run.path / "setting.json", setting)
    return run.path


def _spec(results: Mapping[str, Trace | Ensemble]) -> Spec:
    first = next(iter(results.values()))
    seeds = len(first.traces) if isinstance(first, Ensemble) else 1
    methods = "\n".join(
        f'[methods."{label}"]\nmethod = "CGT"\nstep_size = 0.05\nthreshold = 5.0' for label in results
    )
    head = f'name = "by hand"\nsteps = 200\nseeds = {seeds}\ngraph = {{kind = "example5"}}\n'
    return parse_spec(f'{head}problem = {{kind = "example_quadratic"}}\n{methods}')
