"""Draw the figure of the front page: `python docs/front.py` writes docs/images/front.png.

Three methods on the problem of the README, one axis: how far the loss at the average is above its minimum. The
threshold is below the local gradients at the minimum, so that clipping them still acts there.
"""

from pathlib import Path

import matplotlib

import digrad as dg

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FIGURE = Path(__file__).parent / "images" / "front.png"
STEPS = 3000
METHODS = [
    dg.CGT(step_size=0.05, threshold=0.1),
    dg.AB(step_size=0.05),
    dg.DGDClip(step_size=0.05, threshold=0.1),
]
# Text, colour, and where it stands.
LABELS = {
    "AB": ("plain gradient tracking\nexplodes", "#c0392b", (4, 1e7)),
    "DGDClip": ("clipping local gradients\nstalls at a wrong point", "#7f7f7f", (200, 2e1)),
    "CGT": ("clipping the tracker (CGT)\nconverges", "#1f5fbf", (30, 1e-9)),
}


def draw() -> None:
    """Run the methods of the README and draw one curve each."""
    network = dg.Network(dg.graphs.example5())
    problem = dg.problems.logistic(data="digits", agents=5, partition="sorted", reg_weight=0.01, reg_power=5)
    traces = dg.compare(METHODS, problem, network, steps=STEPS, x0="normal")
    lowest = problem.solve().loss
    figure, axes = plt.subplots(figsize=(7.2, 3.3), layout="constrained")
    for name, trace in traces.items():
        text, colour, place = LABELS[name]
        axes.plot(trace.k + 1, trace.loss - lowest, color=colour, linewidth=2.5)
        axes.annotate(text, place, color=colour, fontsize=11, fontweight="bold")
    axes.set(xscale="log", yscale="log", xlim=(1, STEPS), ylim=(1e-12, 1e10))
    axes.set(xlabel="iteration", ylabel="loss above its minimum")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    figure.savefig(FIGURE, dpi=130)


if __name__ == "__main__":
    draw()
