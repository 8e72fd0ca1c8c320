"""Train one model by DDP, by local SGD and by CGT: accuracy, bytes and time, and what agents that pause cost.

    python docs/ddp.py

Every run has a network namespace of its own (`unshare`, Linux), so that nothing else uses its loopback. Stores the
result in results/ddp/, and prints the rows of the page.
"""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import digrad as dg
from digrad.torch import DecentralizedOptimizer, ProcessNetwork, Shard

OUT = Path(__file__).parent / "results" / "ddp"
ALONE = "ip link set lo up && GLOO_SOCKET_IFNAME=lo exec"
STEPS, AGENTS, EVERY = 500, 5, 10
METHODS = ("DDP", "local SGD", "CGT", "CGT, few messages", "CGT, deadline")
RATES = (0.1, 0.2, 0.5)
PAUSE, OFTEN = 0.1, 0.05  # seconds that an agent pauses after a step, and how often


def bytes_on_loopback() -> int:
    """Return what has been sent on this loopback."""
    return int(Path("/proc/net/dev").read_text().split("lo:")[1].split()[8])


def train(method: str, scheme: str, rate: float, pauses: int) -> None:
    """Train as one of the agents; agent 0 prints what the average model can do."""
    digits = dg.data.digits(classes=10)
    images, labels = torch.tensor(digits.features, dtype=torch.float32), torch.tensor(digits.labels).long()
    unseen = torch.arange(len(labels)) % 5 == 0
    parts = dg.data.partition(digits.labels[~unseen.numpy()], agents=AGENTS, scheme=scheme, seed=0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    network, optimizer = None, torch.optim.SGD(model.parameters(), rate)
    if method.startswith("CGT"):
        few = method.endswith("few messages")
        links = dg.Links(compressor=dg.compressors.quantize(4)) if few else None
        recipe = dg.Network(dg.graphs.every(EVERY if few else 1, dg.graphs.example5()), links=links)
        deadline = 0.02 if "deadline" in method else None
        network = ProcessNetwork(recipe, direct=False, deadline=deadline)
        optimizer: Any = DecentralizedOptimizer(model.parameters(), dg.CGT(rate, threshold=2.0), network)
    else:
        dist.init_process_group("gloo")
    agent = int(os.environ["RANK"])
    draw = random.Random(agent)
    shard = Shard(parts.indices, agent=agent, batch_size=32)
    x, y = images[~unseen], labels[~unseen]
    called = nn.parallel.DistributedDataParallel(model) if method == "DDP" else model
    before, began = bytes_on_loopback(), time.perf_counter()
    for k in range(STEPS):
        batch = shard.batch(k)
        optimizer.zero_grad()
        nn.functional.cross_entropy(called(x[batch]), y[batch]).backward()
        optimizer.step()
        if method == "local SGD" and (k + 1) % EVERY == 0:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= AGENTS
        if pauses and draw.random() < OFTEN:
            time.sleep(PAUSE)
    if network is not None:
        optimizer.close()
    seconds, sent = time.perf_counter() - began, bytes_on_loopback() - before
    with optimizer.averaged_parameters() if network is not None else torch.no_grad():
        outputs = model(images[unseen])
    if agent == 0:
        loss = nn.functional.cross_entropy(outputs[::2], labels[unseen][::2]).item()
        accuracy = (outputs.argmax(1) == labels[unseen])[1::2].double().mean().item()
        found = {"validation_loss": loss, "accuracy": accuracy, "seconds": seconds, "MB": sent / AGENTS / 1e6}
        print(json.dumps(found))
    if network is not None:
        network.close()


def run(method: str, scheme: str, rate: float, pauses: bool) -> dict[str, Any]:
    """Start the agents of one training, and return what it reached."""
    words = f"{__file__} '{method}' {scheme} {rate} {int(pauses)}"
    launch = f"{ALONE} {sys.executable} -m digrad launch --agents {AGENTS} {words}"
    command = ["unshare", "--map-root-user", "--net", "sh", "-c", launch]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if "accuracy" in line]
    if not found:
        raise SystemExit(done.stdout + done.stderr)
    return {
        "method": method,
        "data": scheme,
        "rate": rate,
        "pauses": pauses,
        **json.loads(found[0].partition("] ")[2]),
    }


def main() -> None:
    """Run all, store their figures, and print the table; rates are chosen on images that do not measure."""
    runs = []
    for method in METHODS:
        tried = {
            scheme: [run(method, scheme, rate, pauses=False) for rate in RATES]
            for scheme in ("iid", "sorted")
        }
        shuffled, unequal = (min(each, key=lambda one: one["validation_loss"]) for each in tried.values())
        paused = run(method, "sorted", unequal["rate"], pauses=True)
        runs += [*tried["iid"], *tried["sorted"], paused]
        print(
            f"| {method} | {shuffled['accuracy']:.1%} | {unequal['accuracy']:.1%} | {unequal['MB']:.2f} | "
            f"{unequal['seconds']:.1f} | {paused['seconds']:.1f} | {paused['accuracy']:.1%} |",
            flush=True,
        )
    OUT.mkdir(parents=True, exist_ok=True)
    facts = {"command": "python docs/ddp.py", "torch": torch.__version__, "steps": STEPS, "agents": AGENTS}
    (OUT / "runs.json").write_text(json.dumps({**facts, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:]:
        train(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
