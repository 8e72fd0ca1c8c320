"""One agent that meets trouble; it prints one line per error, with the seconds it took to notice."""

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

import digrad
from digrad import AB, CGT
from digrad.errors import DigradError
from digrad.graphs import from_edges, ring
from digrad.links import Links, compressors
from digrad.network import Network
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
    """Agent 1 has another graph, dtype, model, method, step and kind of links than the rest, one at a time."""
    odd = RANK == 1
    bigger = from_edges(3, [(0, 1), (1, 2), (2, 0), (1, 0)])
    report("graph", lambda: ProcessNetwork(bigger if odd else ring(3), timeout=10))
    genuine = digrad.__version__
    digrad.__version__ = "0.0.odd" if odd else genuine
    report("version", lambda: ProcessNetwork(ring(3), timeout=10))
    digrad.__version__ = genuine
    links = Links(compressor=compressors.bfloat16()) if odd else None
    report("links", lambda: ProcessNetwork(Network(ring(3), links=links), timeout=10))
    report("direct", lambda: ProcessNetwork(ring(3), timeout=10, direct=not odd))
    network = ProcessNetwork(ring(3), timeout=10)
    plain = torch.nn.Linear(4, 3)
    other = {"dtype": torch.nn.Linear(4, 3).double(), "model": torch.nn.Linear(5, 3)}
    for name, model in other.items():
        chosen = model if odd else plain
        report(name, lambda m=chosen: DecentralizedOptimizer(m.parameters(), METHOD, network))
    swapped = AB(step_size=0.01) if odd else METHOD
    report("method", lambda: DecentralizedOptimizer(plain.parameters(), swapped, network))
    faster = CGT(step_size=0.02 if odd else 0.01, threshold=1.0)
    report("lr", lambda: DecentralizedOptimizer(plain.parameters(), faster, network))
    groups = [{"params": plain.parameters(), "weight_decay": 0.5 if odd else 0.0}]
    report("weight decay", lambda: DecentralizedOptimizer(groups, METHOD, network))
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


def train_over_zeromq(folder: Path) -> None:
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


def poisoned(folder: Path, culprit: str = "1") -> None:
    """One agent has a batch that is no number at step 7, and all of them checkpoints at every other step."""
    network = ProcessNetwork(ring(4), timeout=30)
    model = torch.nn.Linear(3, 2)
    optimizer = DecentralizedOptimizer(model.parameters(), METHOD, network)
    checkpoints = Checkpoints(folder / "steps", optimizer)

    def train() -> None:
        while optimizer.k < 30:
            optimizer.zero_grad()
            value = float("nan") if optimizer.k == 7 and int(culprit) == RANK else 1.0
            model(torch.full((1, 3), value)).square().mean().backward()
            optimizer.step()
            if optimizer.k % 2 == 0:
                checkpoints.save()

    report("poisoned", train)
    finite = all(bool(value.isfinite().all()) for value in optimizer.state_fields)
    print(json.dumps({"attempt": "state", "error": None, "finite": finite, "k": optimizer.k}), flush=True)


def repeated(_: Path) -> None:
    """The same batch, but the gradient before it is repeated."""
    network = ProcessNetwork(ring(3), timeout=10)
    model = torch.nn.Linear(3, 2)
    optimizer = DecentralizedOptimizer(model.parameters(), METHOD, network, non_finite="repeat")
    grads = []
    for k in range(4):
        optimizer.zero_grad()
        model(torch.full((1, 3), float("nan") if (k, RANK) == (2, 1) else 1.0)).square().mean().backward()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.step()
        grads.append(optimizer.state_fields.g.clone())
        told = [str(one.message) for one in caught]
        assert len(told) == (1 if (k, RANK) == (2, 1) else 0), told
        assert all(
            text.startswith("step 2: the gradient of agent 1 is not finite; the previous one")
            for text in told
        )
    sums = [network.sum(value) for value in (optimizer.state_fields.y, optimizer.state_fields.g)]
    assert torch.allclose(*sums, atol=1e-6)
    print(json.dumps({"attempt": "same", "error": None, "same": torch.equal(grads[1], grads[2])}), flush=True)
    optimizer.close()
    network.close()


def alone(folder: Path, call: str) -> None:
    """Agent 1 takes its time at step 1, and calls something at step 3 that concerns all agents; the others do not."""
    network = ProcessNetwork(ring(3))
    model = torch.nn.Linear(3, 2)
    optimizer = DecentralizedOptimizer(model.parameters(), METHOD, network)
    checkpoints = Checkpoints(folder, optimizer)
    calls = {
        "save": checkpoints.save,
        "consensus_error": optimizer.consensus_error,
        "averaged_parameters": optimizer.averaged_parameters().__enter__,
    }

    def train() -> None:
        while optimizer.k < 100:
            if (optimizer.k, RANK) == (1, 1) and call == "save":
                time.sleep(12)  # to evaluate, or because of a file system
            if (optimizer.k, RANK) == (3, 1):
                calls[call]()
            optimizer.zero_grad()
            model(torch.ones(1, 3)).square().mean().backward()
            optimizer.step()

    report("alone", train)


def rates(folder: Path, name: str) -> None:
    """Agent 1 changes a rate at step 30, and all save at step 40."""
    network = ProcessNetwork(ring(3), timeout=20)
    model = torch.nn.Linear(3, 2)
    optimizer = DecentralizedOptimizer(model.parameters(), METHOD, network)
    checkpoints = Checkpoints(folder, optimizer)

    def train() -> None:
        while optimizer.k < 250:
            if (optimizer.k, RANK) == (30, 1):
                optimizer.param_groups[0][name] = 0.125
            optimizer.zero_grad()
            model(torch.ones(1, 3)).square().mean().backward()
            optimizer.step()
            if optimizer.k == 40:
                checkpoints.save()

    report("rates", train)
    print(json.dumps({"attempt": "k", "error": None, "k": optimizer.k}), flush=True)


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
    globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
