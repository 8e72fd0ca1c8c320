"""The numbers of every method, to see that a rebuild changes none of them.

    python tests/bits.py --write tests/bits.json      # on the commit whose numbers count
    python tests/bits.py --compare tests/bits.json    # later, or elsewhere

Every case stores the hash of each recorded column and of the final estimates, and the last numbers themselves. On the
processor and the versions of the file every bit must be the same; elsewhere numbers may differ by the rounding that
``TOLERANCE`` allows. A run that is resumed has no numbers of its own: it must give those of the run that is not.
``--only WORD`` takes the cases with that word in their names.
"""

import argparse
import hashlib
import json
import platform
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import digrad as dg
from digrad.links import Bursts, Clock, Crash, Exponential, FixedDelay, Join, Leave, Links, compressors
from method_cases import CASES

REFERENCE = Path(__file__).with_suffix(".json")
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}  # relative to the largest number of an array, and to 1
PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "torch")
RECORD = dg.Record(
    average="weighted"
)  # of the agents, where columns were measured when the reference was made
STEPS, CUT = 24, 11  # of a run, and where it is resumed
SHOWN = 10  # numbers stored of an array
RESUMED = " resumed"

# What has changed since the reference was made, and why: only in the last digits, where a sum has another order,
ROUNDED = dict.fromkeys(
    ("CGT many agents", "CGT many agents float32"), "933ebd0: XLA instead of Numba"
) | dict.fromkeys(
    (
        "ClippedGD full float64",
        "SGP loss",
        "SGP delay",
        "SGP fixed delay",
        "SGP deadline",
        "SGP random edges with loss",
    ),
    "1a91973: norms of rows are scaled by powers of two",
)
ROUNDED |= dict.fromkeys(
    [f"SoftCGT {how} float{bits}" for how in ("full", "batch", "replicas") for bits in (64, 32)],
    "methods: step_size * (y * factor), as a composition has it",
)
COMPRESSED = [
    f"{method} {links}" for method in ("CGT", "SGP") for links in ("top_k", "sign", "quantize", "bfloat16")
]
ROUNDED |= dict.fromkeys(COMPRESSED, "7cdb55f: links that only compress run on the net of reliable links")
ROUNDED["mass_error"] = "54dc693: at least half a unit in the last place"  # of any case
# or in what a column says.
CHANGED = {
    ("CGT scheduled", "fraction_clipped"): "176d99c: NaN in the last row before",
    ("SGP bursts", "mass_error"): "e503478: infinite once a run has diverged",
    **{
        (f"{method} {links}", "delivered"): "81b2da0: counts neither what is under way nor what was overtaken"
        for method in ("CGT", "SGP")
        for links in ("delay", "fixed delay", "deadline")
    },
    **{
        (case, column): "7cdb55f: at the average with Perron weights, at the plain mean before"
        for case in COMPRESSED
        for column in ("loss", "grad_norm", "consensus_error", "tracking_error")
    },
}

Arrays = dict[str, np.ndarray]
Case = Callable[[], Arrays]

EXAMPLE = dg.graphs.example5()
NETWORK = dg.Network(EXAMPLE)
COMPLETE = dg.graphs.complete(5)


def logistic() -> dg.Problem:
    """Return 23 samples in three dimensions on five agents, 5, 5, 5, 4 and 4."""
    generator = np.random.default_rng(0)
    features = generator.standard_normal((23, 3))
    labels = np.where(features[:, 0] + generator.standard_normal(23) > 0, 1, -1)
    data = dg.Dataset("tiny", features, labels)
    return dg.problems.logistic(data=data, agents=5, reg_weight=[1e-2, 2e-2, 1e-2, 3e-2, 1e-2], reg_power=4)


QUADRATIC = (dg.problems.example_quadratic(), {"x0": [10.0, -10.0]})
LOGISTIC = (logistic(), {"x0": "normal", "batch_size": 2})
CGT, SGP, DSGT = dg.CGT(0.05, 2.0), dg.SGP(0.05), dg.DSGT(0.05)

LINKS: dict[str, Any] = {
    "loss": dg.Links(loss=0.3),
    "bursts": dg.Links(loss=Bursts(0.3, 4.0), seed=1),
    "delay": dg.Links(loss=0.1, delay=2),
    "fixed delay": dg.Links(delay=FixedDelay(2)),
    "asleep": dg.Links(awake=[0.5, 0.6, 0.7, 0.8, 0.9]),
    "noise": dg.Links(noise=dg.schedules.Geometric(0.1, 0.9)),
    "keep": dg.Links(loss=0.3, push="keep", pull="renormalise"),
    "naive": dg.Links(loss=0.3, push="last", pull="last"),
    "top_k": dg.Links(compressor=dg.compressors.top_k(1)),
    "random_k": dg.Links(compressor=dg.compressors.random_k(1)),
    "sign": dg.Links(compressor=dg.compressors.sign()),
    "quantize": dg.Links(compressor=dg.compressors.quantize(4)),
    "bfloat16": dg.Links(compressor=dg.compressors.bfloat16()),
    "rounded": Links(compressor=compressors.bfloat16()),
    "clock": dg.Links(loss=0.1, clock=Clock(compute=Exponential(1.0), latency=0.1, bandwidth=100.0)),
    "clock with a compressor": dg.Links(
        compressor=dg.compressors.bfloat16(), clock=Clock(compute=1.0, bandwidth=100.0)
    ),
    "deadline": dg.Links(clock=Clock(compute=Exponential(1.0), latency=0.3, deadline=1.5)),
}
SCHEDULED = {
    "CGT scheduled": dg.CGT(dg.schedules.Inverse(1.0, 10), dg.schedules.InverseSqrt(5.0)),
    "SGP scheduled": dg.SGP(lambda k: 0.1 / (k + 1) ** 0.5),
    "Adam scheduled": dg.Adam(dg.schedules.Geometric(0.1, 0.95)),
}
SEQUENCES = {
    "split": dg.Network(dg.graphs.split(EXAMPLE, 3)),
    "random edges": dg.Network(dg.graphs.random_edges(EXAMPLE, 0.6, seed=3)),
    "local steps": dg.Network(dg.graphs.every(3, EXAMPLE)),
    "one peer": dg.Network(dg.graphs.one_peer_exponential(5)),
    "two networks": dg.Network([NETWORK, dg.Network(COMPLETE)]),
    "random edges with loss": dg.Network(dg.graphs.random_edges(EXAMPLE, 0.6), links=dg.Links(loss=0.2)),
}
CHURN = {
    "leave and join": [Leave(1, at=5), Join(1, at=14)],
    "undo": [Crash(2, at=9)],
    "restart": [Crash(2, at=9, repair="restart"), Join(2, at=17)],
}


def cases() -> dict[str, Case]:
    """Return every case by its name."""
    found: dict[str, Case] = {}
    for case in CASES:
        for kind, (problem, options) in {"full": QUADRATIC, "batch": LOGISTIC}.items():
            for dtype in TOLERANCE:
                found |= twice(f"{case.label} {kind} {dtype}", case.method, problem, dtype=dtype, **options)
    problem, options = QUADRATIC
    for name, links in LINKS.items():
        for method in (CGT, SGP):
            network = dg.Network(EXAMPLE, links=links)
            found |= twice(f"{type(method).__name__} {name}", method, problem, network, **options)
    lossy = dg.Network(EXAMPLE, links=dg.Links(loss=0.2, compressor=dg.compressors.top_k(1)))
    found |= twice("CGT top_k with loss", CGT, problem, lossy, **options)
    symmetric = dg.Network(
        COMPLETE, W=dg.network.metropolis(COMPLETE), links=dg.Links(loss=0.3, two_way=True, awake=0.8)
    )
    found |= twice("DSGT two way", DSGT, problem, symmetric, **options)
    for name, method in SCHEDULED.items():
        found |= twice(name, method, LOGISTIC[0], **LOGISTIC[1])
    for name, network in SEQUENCES.items():
        for method in (CGT, SGP):
            found |= twice(f"{type(method).__name__} {name}", method, problem, network, **options)
    for name, churn in CHURN.items():
        network = dg.Network(COMPLETE, links=dg.Links(loss=0.1, churn=churn))
        found |= twice(f"CGT {name}", CGT, problem, network, **options)
    found |= twice("CGT epochs", CGT, LOGISTIC[0], sampling="epoch", **LOGISTIC[1])
    found["CGT stopped"] = partial(simulated, CGT, problem, steps=900, stop_at_tolerance=True, **options)
    every = dg.Record(average=RECORD.average, paths=True, invariant=True)
    found["CGT all columns"] = partial(simulated, CGT, problem, record=every, **options)
    return found | together() | large() | replicas()


def twice(name: str, method: Any, problem: Any, network: Any = NETWORK, **options: Any) -> dict[str, Case]:
    """Return a run, and the same run resumed."""
    given = partial(simulated, method, problem, network, **options)
    return {name: given, f"{name}{RESUMED}": partial(given, resumed=True)}


def simulated(
    method: Any, problem: Any, network: Any = NETWORK, *, resumed: bool = False, **options: Any
) -> Arrays:
    """Run a method and return what it recorded."""
    options = {"steps": STEPS, "record_every": 5, "record": RECORD, **options}
    if not resumed:
        return arrays(dg.simulate(method, problem, network, **options))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.npz"
        half = dg.Checkpoint(path, every=CUT)
        dg.simulate(method, problem, network, checkpoint=half, **{**options, "steps": CUT})
        whole = dg.Checkpoint(path, every=STEPS, resume=True)
        return arrays(dg.simulate(method, problem, network, checkpoint=whole, **options))


def together() -> dict[str, Case]:
    """Return seeds and configurations that are batched, or share their samples, or do not."""

    def seeds(method: Any) -> Arrays:
        traces = dg.compare(
            {"it": method},
            QUADRATIC[0],
            NETWORK,
            steps=STEPS,
            x0="normal",
            seeds=3,
            record_every=5,
            record=RECORD,
        )
        return {
            f"{name} of seed {seed}": column
            for seed, trace in enumerate(traces["it"].traces)
            for name, column in arrays(trace).items()
        }

    def table(kind: str, **options: Any) -> Arrays:
        problem = {"full": QUADRATIC, "batch": LOGISTIC}[kind][0]
        found = dg.sweep(
            [dg.CGT, dg.AB], problem, NETWORK, steps=STEPS, seeds=2, x0="normal", record_every=5, record=RECORD,
            grid={"step_size": [0.02, 0.1], "threshold": [0.5, 2.0]}, **options,
        ).table  # fmt: skip
        numbers = found.select_dtypes("number").drop(columns=["seconds", "sample_seed"], errors="ignore")
        return {str(name): numbers[name].to_numpy(np.float64, na_value=np.nan) for name in numbers}

    scheduled = dg.CGT(dg.schedules.Inverse(1.0, 10), 2.0)
    return {
        "CGT three seeds": partial(seeds, CGT),
        "SGP three seeds": partial(seeds, SGP),
        "CGT scheduled three seeds": partial(seeds, scheduled),
        "sweep full": partial(table, "full"),
        "sweep full float32": partial(table, "full", dtype="float32"),
        "sweep batch": partial(table, "batch", batch_size=2),
        "sweep batch in common": partial(table, "batch", batch_size=2, common_random_numbers=True),
    }


def large() -> dict[str, Case]:
    """Return networks beyond those that are multiplied densely."""

    def on(graph: Any, d: int, **options: Any) -> Arrays:
        generator = np.random.default_rng(1)
        curvature, linear = generator.uniform(0.5, 2.0, (graph.n, d)), generator.standard_normal((graph.n, d))
        problem = dg.problems.quadratic(curvature=curvature, linear=linear)
        return simulated(CGT, problem, dg.Network(graph), steps=STEPS, **options)

    return {
        "CGT sparse": lambda: on(dg.graphs.k_out(300, 3, seed=0), 2),
        "CGT circulant": lambda: on(dg.graphs.exponential(300), 2),
        "CGT many agents": lambda: on(dg.graphs.k_out(2000, 3, seed=0), 20),
        "CGT many agents float32": lambda: on(dg.graphs.exponential(2000), 20, dtype="float32"),
    }


def replicas() -> dict[str, Case]:
    """Return every method in PyTorch, in both dtypes; nothing where PyTorch is missing."""
    found = find_spec("torch")
    if found is None or found.origin is None:  # a mere folder of that name
        return {}
    return {
        f"{case.label} replicas {dtype}": partial(trained, case.method, dtype)
        for case in CASES
        for dtype in TOLERANCE
    }


def trained(method: Any, dtype: str) -> Arrays:
    """Train a linear model on five agents, and return where it ends and what was sent."""
    import torch

    from digrad.torch import Replicas

    torch.set_num_threads(1)
    kind, generator = getattr(torch, dtype), torch.Generator().manual_seed(1)
    model = torch.nn.Linear(2, 1).to(kind)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=kind, generator=generator))
    agents = Replicas(model, method, NETWORK)
    inputs = torch.randn(5, 4, 2, dtype=kind, generator=generator)
    for _ in range(CUT):
        agents.zero_grad()
        for agent, one in enumerate(agents.models):
            ((one(inputs[agent]) - agent) ** 2).mean().backward()
        agents.step()
    return {"estimate": agents.estimate().numpy(), "bytes_sent": np.array([agents.bytes_sent])}


def arrays(trace: Any) -> Arrays:
    """Return what a trace holds and no clock of this machine has a part in."""
    end = [trace.steps, -1 if trace.diverged_at is None else trace.diverged_at]
    return {"final_x": trace.final_x, "end": np.array(end), **trace.columns}


def record(found: Arrays) -> dict[str, list[Any]]:
    """Return a hash and the last numbers of each array, as JSON holds them."""
    return {name: [digest(array), *last(array)] for name, array in found.items()}


def digest(array: Any) -> str:
    """Return a short hash of the bits of an array."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:8]


def last(array: Any) -> list[Any]:
    """Return the last numbers of an array: one of a column, several of what has agents and entries."""
    flat = np.ravel(array)[-1:] if array.ndim == 1 and array.size > 2 else np.ravel(array)[-SHOWN:]
    is_short = array.dtype == np.float32  # its digits suffice
    return [float(str(number)) if is_short else number.item() for number in flat]


def machine() -> dict[str, str]:
    """Return what decides the last bit: the processor, and the versions of what computes."""
    lines = Path("/proc/cpuinfo")
    known = dict.fromkeys(lines.read_text().split("\n\n")[0].splitlines()) if lines.exists() else {}
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in known)}
    flags = hashlib.sha256(facts.get("flags", "").encode()).hexdigest()[:8]
    names = [facts.get(key, "") for key in ("model name", "cpu family", "model")]
    return {
        "processor": " ".join([platform.machine(), *names, flags]),
        **{name: _version(name) for name in PACKAGES},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def run(only: str = "") -> Iterator[tuple[str, dict[str, list[Any]]]]:
    """Yield the name of each case and what it gave."""
    for name, case in cases().items():
        if only in name:
            yield name, record(case())


def distance(first: list[Any], second: list[Any]) -> float:
    """Return the largest difference of two rows of numbers, relative to the largest of them and to 1."""
    one, other = np.array(first, np.float64), np.array(second, np.float64)
    if one.shape != other.shape:
        return np.inf
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    gaps = np.where(same, 0.0, abs(np.where(same, 0.0, one) - np.where(same, 0.0, other)))
    size = max(1.0, np.max(abs(one), where=np.isfinite(one), initial=1.0))
    return float(np.max(np.nan_to_num(gaps, nan=np.inf), initial=0.0) / size)


def differences(
    known: dict[str, list[Any]], found: dict[str, list[Any]], *, bitwise: bool, tolerance: float
) -> dict[str, float]:
    """Return by how much each array that both have differs, if it does."""
    shared = {name: distance(known[name][1:], found[name][1:]) for name in known if name in found}
    return {
        name: gap
        for name, gap in shared.items()
        if gap > tolerance or (bitwise and name not in ROUNDED and known[name][0] != found[name][0])
    }


def tolerance_of(name: str) -> float:
    """Return by how much the numbers of a case may differ on another machine."""
    return TOLERANCE["float32" if "float32" in name else "float64"]


def write(path: Path, only: str) -> int:
    """Write the reference; return how many resumed runs differ from those that are not."""
    stored: dict[str, Any] = {}
    wrong = 0
    for name, found in run(only):
        plain = name.removesuffix(RESUMED)
        if plain == name:
            stored[name] = found
        elif gaps := differences(stored[plain], found, bitwise=True, tolerance=0.0):
            wrong += 1
            print(f"not as without a resume: {plain}: {gaps}")
    command = f"python tests/bits.py --write {path}"
    lines = [
        f"  {json.dumps(name)}: {json.dumps(found, separators=(',', ':'))}" for name, found in stored.items()
    ]
    asked = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    head = json.dumps({"command": command, "commit": commit, **machine()}, indent=1)
    path.write_text(f'{{"made": {head},\n"cases": {{\n' + ",\n".join(lines) + "\n}}\n")
    print(f"{len(stored)} cases written to {path}")
    return wrong


def compare(path: Path, only: str) -> int:
    """Print the cases that differ from the reference; return how many."""
    stored = json.loads(path.read_text())
    here, made = machine(), stored["made"]
    bitwise = all(made[key] == value for key, value in here.items())
    print("bit for bit" if bitwise else f"to rounding, because this machine is another one: {here}")
    count, wrong, changed = 0, 0, set()
    for name, found in run(only):
        plain = name.removesuffix(RESUMED)
        known = stored["cases"].get(plain)
        count += 1
        if known is None:
            print(f"new: {name}")
            continue
        changed |= {f"- {column}" for column in known.keys() - found.keys()}
        changed |= {f"+ {column}" for column in found.keys() - known.keys()}
        exact = bitwise and plain not in ROUNDED
        gaps = differences(known, found, bitwise=exact, tolerance=tolerance_of(name))
        gaps = {column: gap for column, gap in gaps.items() if (plain, column) not in CHANGED}
        wrong += bool(gaps)
        if gaps:
            print(f"differs: {name}: " + ", ".join(f"{column} by {gap:.1e}" for column, gap in gaps.items()))
    print(f"expected, see {Path(__file__).name}: {sorted(ROUNDED)} in the last digits, {sorted(CHANGED)}")
    print(f"{count} cases compared, {wrong} differ; columns gone or new: {sorted(changed) or 'none'}")
    return wrong


def main() -> int:
    """Read the command line, and write or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, metavar="FILE")
    what.add_argument("--compare", type=Path, metavar="FILE")
    parser.add_argument("--only", default="", metavar="WORD", help="the cases with this word in their names")
    given = parser.parse_args()
    warnings.filterwarnings(
        "ignore", message=".*(is biased|drain)"
    )  # said of some links; they count here too
    return write(given.write, given.only) if given.write else compare(given.compare, given.only)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
