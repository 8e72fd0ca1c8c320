"""Hashes of everything that runs compute, to see that a rebuild changed no bit: `python tests/bits.py FILE`.

Writes the hashes to FILE if it is new; otherwise compares with it and lists what differs, with the size of the
difference where both are known. Bits depend on the kind of machine and the version of JAX, so the file is made on the
commit before, by the same machine, and is not stored in the project.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import digrad as dg
from digrad.simulation import Checkpoint
from method_cases import CASES

NETWORK = dg.Network(dg.graphs.example5())


def main(path: Path) -> int:
    """Write or compare; return how many runs differ."""
    found = {**dict(simulated()), **dict(replicas())}
    if not path.exists():
        path.write_text(json.dumps(found, indent=1))
        print(f"{len(found)} runs written to {path}")
        return 0
    known = json.loads(path.read_text())
    shared = [name for name in known if name in found]
    differing = [
        (name, column)
        for name in shared
        for column in known[name]
        if known[name][column] != found[name].get(column)
    ]
    for name, column in differing:
        print(f"differs: {name}: {column}")
    print(f"{len(shared)} runs compared, {len({name for name, _ in differing})} differ")
    print(f"only before: {sorted(set(known) - set(found))}; only now: {sorted(set(found) - set(known))}")
    return len(differing)


def simulated() -> Any:
    """Yield the hashes of every method: full batch and mini-batch, both dtypes, resumed and not."""
    digits = dg.problems.logistic(
        data="digits",
        agents=5,
        partition="sorted",
        reg_weight=[5e-4, 1e-3, 2e-3, 1e-3, 1e-3],
        reg_power=[4, 5, 6, 5, 4],
    )
    settings = {
        "quadratic": (
            dg.problems.example_quadratic(),
            {"steps": 120, "x0": [10.0, -10.0], "record_every": 7},
        ),
        "digits": (digits, {"steps": 60, "batch_size": 8, "x0": "normal", "record_every": 5}),
    }
    for case in CASES:
        for problem_name, (problem, options) in settings.items():
            for dtype in ("float64", "float32"):
                name = f"{case.label} {problem_name} {dtype}"
                whole = dg.simulate(case.method, problem, NETWORK, dtype=dtype, plain_mean=True, **options)
                yield name, hashes(whole)
        with tempfile.TemporaryDirectory() as folder:
            half = Checkpoint(Path(folder) / "run.npz", every=30)
            problem, options = settings["digits"]
            dg.simulate(
                case.method, problem, NETWORK, **{**options, "steps": 30}, plain_mean=True, checkpoint=half
            )
            again = Checkpoint(half.path, every=30, resume=True)
            yield (
                f"{case.label} resumed",
                hashes(
                    dg.simulate(case.method, problem, NETWORK, **options, plain_mean=True, checkpoint=again)
                ),
            )


def replicas() -> Any:
    """Yield the hashes of every method in the torch engine, both dtypes."""
    import torch

    from digrad.torch import Replicas

    torch.set_num_threads(1)
    for case in CASES:
        if case.label == "CGT-agents":
            continue
        for dtype in (torch.float64, torch.float32):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).to(
                dtype
            )
            agents = Replicas(model, case.method, NETWORK)
            inputs = torch.randn(5, 8, 4, dtype=dtype, generator=torch.Generator().manual_seed(1))
            for _ in range(20):
                agents.zero_grad()
                for agent, one in enumerate(agents.models):
                    ((one(inputs[agent]) - agent) ** 2).mean().backward()
                agents.step()
            arrays = {"estimate": agents.estimate().numpy(), "bytes": np.array(agents.bytes_sent)}
            yield f"{case.label} replicas {dtype}", {key: digest(value) for key, value in arrays.items()}


def hashes(trace: Any) -> dict[str, str]:
    """Return the hash of every column and of the final x."""
    columns = {name: digest(column) for name, column in trace.columns.items()}
    return {**columns, "final_x": digest(trace.final_x), "verdict": trace.verdict}


def digest(array: Any) -> str:
    """Return a short hash of the bits of an array."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(1 if main(Path(sys.argv[1])) else 0)
