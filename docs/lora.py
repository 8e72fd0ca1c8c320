"""Fine-tune with LoRA by three methods, and count what crosses the wire: loss and bytes of examples/torch_lora.py.

    python docs/lora.py BASE

BASE is the model that `python examples/torch_lora_model.py BASE` writes. Every run has a network namespace of its own
(`unshare`, Linux), so that nothing else uses its loopback; all run at once. Stores the result in results/lora/.
"""

import json
import platform
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from digrad.plots.axis_limits import log_limits, use_log_axis
from digrad.plots.style import dress_axes, legend, panels, style_of

OUT = Path(__file__).parent / "results" / "lora"
SCRIPT = Path(__file__).parents[1] / "examples" / "torch_lora.py"
ALONE = "ip link set lo up && GLOO_SOCKET_IFNAME=lo exec"
STEPS = 801
RATES = {"DDP": (12e-3, 24e-3), "DiLoCo": (12e-3,), "Gossip": (24e-3, 48e-3)}


def measure(base: str, method: str, rate: float) -> dict[str, Any]:
    """Return losses and megabytes of one run."""
    options = f"--method {method} --lr {rate} --steps {STEPS}"
    launch = f"{ALONE} {sys.executable} -m digrad launch --agents 4 {SCRIPT} {base} {options}"
    command = ["unshare", "--map-root-user", "--net", "sh", "-c", launch]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"loss per letter ([\d.]+) \(([\d.]+)\), ([\d.]+) MB", shown)
    assert found, shown
    loss, validation, megabytes = map(float, found.groups())
    return {"method": method, "lr": rate, "validation": validation, "loss": loss, "MB": megabytes}


def main(base: str) -> None:
    """Run all, and store their figures."""
    with ThreadPoolExecutor() as pool:
        wanted = [(method, rate) for method in RATES for rate in RATES[method]]
        runs = list(pool.map(lambda run: measure(base, *run), wanted))
    OUT.mkdir(parents=True, exist_ok=True)
    facts = {"command": "python docs/lora.py BASE", "python": platform.python_version(), "steps": STEPS}
    (OUT / "runs.json").write_text(json.dumps({**facts, "runs": runs}, indent=1) + "\n")
    draw(runs)


def draw(runs: list[dict[str, Any]]) -> None:
    """Draw loss and bytes; print them as the rows of the page."""
    figure, (ax,) = panels(1, 1)
    styles = {name: style_of(name, place) for place, name in enumerate(RATES)}
    for run in runs:
        style = styles[run["method"]]
        ax.plot(run["loss"], run["MB"], color=style.color, marker=style.marker, linestyle="none")
        losses = f"{run['validation']:.3f} | {run['loss']:.3f}"
        print(f"| {run['method']} | {run['lr']:g} | {losses} | {run['MB']:.1f} |")
    use_log_axis(ax, *log_limits(np.array([run["MB"] for run in runs])))
    dress_axes(ax, "loss per letter on unseen code", "megabytes on the wire")
    legend(figure, styles)
    figure.savefig(OUT / "lora.png", dpi=150)


if __name__ == "__main__":
    main(*sys.argv[1:])
