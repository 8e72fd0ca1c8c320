"""Measure where plain, clipped and normalized steps end against the tail index of the gradient noise.

    python docs/heavy_tails.py

The five-agent quadratic from (1, -1), noise of Student's t distribution with scale 0.1, seeds 0 to 9, 4000 steps of
size 0.01. Of each run counts the distance of the mean of the agents from the minimum over its second half: the median,
and the largest. The figures of all seeds are stored in results/heavy_tails/, with the picture.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

import digrad as dg
from digrad.plots.axis_limits import log_limits, use_log_axis
from digrad.plots.style import dress_axes, legend, panels, style_of

OUT = Path(__file__).parent / "results" / "heavy_tails"
DFS = (1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0)
STEPS, SEEDS, STEP_SIZE, THRESHOLD = 4000, 10, 0.01, 5.0
METHODS = {
    "AB": dg.AB(STEP_SIZE),
    "CGT": dg.CGT(STEP_SIZE, THRESHOLD),
    "NormalizedAB": dg.NormalizedAB(STEP_SIZE),
}
KINDS = {"median": "median distance", "largest": "largest distance"}


def main() -> None:
    """Run all, store the figures and draw them."""
    problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
    lowest = problem.solve().loss
    found: dict[str, Any] = {name: {kind: [] for kind in KINDS} for name in METHODS}
    for df in DFS:
        noise = dg.noise.StudentT(df=df, scale=0.1)
        runs = dg.compare(
            METHODS, problem, network, steps=STEPS, seeds=SEEDS, x0=[1.0, -1.0], record_every=4, gradient_noise=noise
        )  # fmt: skip
        for name, ensemble in runs.items():
            halves = [_distances(trace.loss, lowest) for trace in ensemble.traces]
            found[name]["median"].append([float(np.median(half)) for half in halves])
            found[name]["largest"].append([float(half.max()) for half in halves])
    OUT.mkdir(parents=True, exist_ok=True)
    facts = {"command": "python docs/heavy_tails.py", "df": DFS, "steps": STEPS, "seeds": list(range(SEEDS))}
    (OUT / "distances.json").write_text(json.dumps({**facts, "distances": found}, indent=1) + "\n")
    draw(found)


def _distances(loss: np.ndarray, lowest: float) -> np.ndarray:
    """Return the distances from the minimum of the second half: F - F* = 3/2 |x - x*|^2, the mean curvature being 3."""
    return np.sqrt(np.maximum(loss[len(loss) // 2 :] - lowest, 0) / 1.5)


def draw(found: dict[str, Any]) -> None:
    """Draw medians over the seeds, with bands between their quartiles; print them as the rows of the page."""
    figure, axes = panels(2, 2)
    styles = {name: style_of(name, place) for place, name in enumerate(found)}
    for ax, (kind, words) in zip(axes, KINDS.items(), strict=True):
        bands = {name: np.percentile(found[name][kind], (25, 50, 75), axis=1) for name in found}
        for name, (low, middle, high) in bands.items():
            style = styles[name]
            ax.plot(DFS, middle, color=style.color, marker=style.marker, markersize=4)
            ax.fill_between(DFS, low, high, color=style.color, alpha=0.2, linewidth=0)
        use_log_axis(ax, *log_limits(np.concatenate([band.ravel() for band in bands.values()])))
        dress_axes(ax, "degrees of freedom of the noise", words)
        for name, (_, middle, _) in bands.items():
            print(f"| {name}, {words} | " + " | ".join(f"{value:.2g}" for value in middle) + " |")
    legend(figure, styles)
    figure.savefig(OUT / "heavy_tails.png", dpi=150)


if __name__ == "__main__":
    main()
