"""One agent that meets trouble; it prints one line per error, with the seconds it took to notice."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import digrad
from digrad import AB, CGT
from digrad.errors import DigradError
from digrad.graphs import from_edges, ring
from digrad.torch import Checkpoints, DecentralizedOptimizer, ProcessNetwork

RANK = int(os.environ["RANK"])
METHOD = CGT(step_size=0.01, threshold=1.0)


def report(attempt: str, action: Callable[[], object]) -> None:
    began = time.monotonic()
    try:
        action()
    except DigradError as error:
        line = {"attempt": attempt, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps({**line, "seconds": time.monotonic() - began}), flush=True)
        return
    print(json.dumps({"attempt": attempt, "error": None, "seconds": 0.0}), flush=True)


def disagree(_: Path) -> None:
    """Agent 1 has another graph, dtype, model, method, step and format of messages than the rest, one at a time."""
    odd = RANK == 1
    bigger = from_edges(3, [(0, 1), (1, 2), (2, 0), (1, 0)])
    report("graph", lambda: ProcessNetwork(bigger if odd else ring(3), timeout=10))
    genuine = digrad.__version__
    digrad.__version__ = "0.0.odd" if odd else genuine
    report("version", lambda: ProcessNetwork(ring(3), timeout=10))
    digrad.__version__ = genuine
    report("direct", lambda: ProcessNetwork(ring(3), timeout=10, direct=not odd))
    network = ProcessNetwork(ring(3), timeout=10)
    plain = torch.nn.Linear(4, 3)
    other = {"dtype": torch.nn.Linear(4, 3).double(), "model": torch.nn.Linear(5, 3)}
    for name, model in other.items():
        chosen = model if odd else plain
        report(name, lambda m=chosen: DecentralizedOptimizer(m.parameters(), METHOD, network))
    swapped = AB(step_size=0.01) if odd else METHOD
    report("method", lambda: DecentralizedOptimizer(plain.parameters(), swapped, network))
    short = torch.bfloat16 if odd else None
    report(
        "messages", lambda: DecentralizedOptimizer(plain.parameters(), METHOD, network, message_dtype=short)
    )
    optimizer = DecentralizedOptimizer(plain.parameters(), METHOD, network)
    stored = optimizer.state_dict()
    stored["state"]["k"] = 7 if odd else 5
    report("k", lambda: optimizer.load_state_dict(stored))


def missing(_: Path) -> None:
    report("join", lambda: ProcessNetwork(ring(3), timeout=4))


def absent(_: Path) -> None:
    network = ProcessNetwork(ring(3), timeout=3)
    if RANK == 2:
        time.sleep(8)
        return
    report("absent", lambda: DecentralizedOptimizer(torch.nn.Linear(2, 1).parameters(), METHOD, network))


def wrong_size(_: Path) -> None:
    report("size", lambda: ProcessNetwork(ring(4), timeout=5))


def train(folder: Path, direct: bool = True) -> None:
    """Train until a neighbour falls silent, with messages large enough to be read from memory."""
    network = ProcessNetwork(ring(3), timeout=4, direct=direct)
    model = torch.nn.Linear(1000, 300)
    optimizer = DecentralizedOptimizer(model.parameters(), METHOD, network)

    def forever() -> None:
        while optimizer.k < 100_000:
            optimizer.zero_grad()
            model(torch.ones(2, 1000)).pow(2).mean().backward()
            optimizer.step()
            if optimizer.k == 3:
                (folder / f"training-{RANK}").touch()

    report("train", forever)


def train_over_gloo(folder: Path) -> None:
    train(folder, direct=False)


def abandon(folder: Path) -> None:
    """Drop optimizers whose messages are under way, at different moments, and build the next ones."""
    network = ProcessNetwork(ring(3), timeout=10)

    def train(width: int) -> None:
        model = torch.nn.Linear(width, 300)
        optimizer = DecentralizedOptimizer(model.parameters(), METHOD, network)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, width)).square().mean().backward()
            time.sleep(0.02 * RANK)  # some are dropped while neighbours have not read their messages yet
            optimizer.step()

    report("small", lambda: [train(10) for _ in range(4)])
    report("large", lambda: [train(2000) for _ in range(4)])
    network.close()
    report("again", lambda: ProcessNetwork(ring(3), timeout=10))


def average(folder: Path) -> None:
    """Take averages until a neighbour falls silent."""
    network = ProcessNetwork(ring(3), timeout=4)
    optimizer = DecentralizedOptimizer(torch.nn.Linear(10, 3).parameters(), METHOD, network)
    for _ in range(3):
        optimizer.average()
    (folder / f"training-{RANK}").touch()
    report("train", lambda: [optimizer.average() for _ in range(100_000)])


def checkpoint(folder: Path) -> None:
    network = ProcessNetwork(ring(3), timeout=10)
    optimizer = DecentralizedOptimizer(torch.nn.Linear(9, 5).parameters(), METHOD, network)
    checkpoints = Checkpoints(folder, optimizer)
    optimizer.step()
    path = checkpoints.save() / "agent-1.safetensors"
    network.exchange({}, "test")
    if RANK == 1:
        path.write_bytes(path.read_bytes()[:-40])
    network.exchange({}, "test")
    report("truncated", checkpoints.resume)
    report("tracking restart", lambda: checkpoints.resume("tracking restart"))
    network.close()


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
