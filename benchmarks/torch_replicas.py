"""Cost of the agents of one process, against a plain PyTorch loop that trains as many unconnected copies."""

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

from benchmarks.report import ROOT, BenchRow
from digrad import CGT, checks
from digrad.errors import DigradError
from digrad.torch.launch import require_torch

AGENTS, BATCH = 5, 32
SECONDS = 600  # after which the process is given up


def replicas_rows(*, repeats: int = 7) -> list[BenchRow]:
    """Measure a step of CGT with five copies of the small network, and of SGD with five copies that share nothing.

    Both take turns in one process of one thread, on the same images. The second row is what it takes to crop, mirror
    and normalise the images of such a step.

    Args:
        repeats: Turns; each is one step of both.

    Raises:
        DigradError: The process failed; the message ends with its last line.
    """
    require_torch("the torch benchmark")
    repeats = checks.count(repeats, "repeats", "replicas_rows")
    command = [sys.executable, "-m", "benchmarks.torch_replicas", str(repeats)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise DigradError(f"the benchmark of replicas ended with exit code {done.returncode}: {reason}")
    times = json.loads(done.stdout)
    cpu, wall = (
        {name: 1e3 * statistics.median(one[name]) for name in one} for one in (times["cpu"], times["wall"])
    )
    how = f"CPU time, one thread, taking turns, median of {repeats}"
    replicas = BenchRow(
        "step of five replicas", cpu["replicas"], "ms", 1.15, cpu["plain"], ours_wall=wall["replicas"],
        reference_wall=wall["plain"],
        note=f"CGT, small CNN, batch 32, against five unconnected copies with SGD; {how}",
    )  # fmt: skip
    images = BenchRow(
        "images of a step", cpu["images"], "ms", 0.1, cpu["plain"], ours_wall=wall["images"],
        reference_wall=wall["plain"],
        note=f"five batches of 32 cropped, mirrored and normalised, against the step that uses them; {how}",
    )  # fmt: skip
    return [replicas, images]


def _work(repeats: int) -> dict[str, Any]:
    import torch

    from digrad.data import augmented, normalized
    from digrad.graphs import example5
    from digrad.specs.images.models import build_model
    from digrad.torch import Replicas

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(AGENTS, BATCH, 3, 32, 32, generator=generator)
    batches = [batch.contiguous(memory_format=torch.channels_last) for batch in images]
    labels = torch.randint(10, (AGENTS, BATCH), generator=generator)

    def fresh() -> torch.nn.Module:
        return build_model("small_cnn", norm="group").to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    copies = [fresh() for _ in range(AGENTS)]
    optimizers = [torch.optim.SGD(copy.parameters(), lr=1e-3) for copy in copies]
    replicas = Replicas(fresh(), CGT(step_size=1e-3, threshold=10.0), example5())

    def backward(models: list[torch.nn.Module]) -> None:
        for model, batch, label in zip(models, batches, labels, strict=True):
            torch.nn.functional.cross_entropy(model(batch), label).backward()

    def plain() -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        backward(copies)
        for optimizer in optimizers:
            optimizer.step()

    def ours() -> None:
        replicas.zero_grad()
        backward(replicas.models)
        replicas.step()

    pixels = np.random.default_rng(0).integers(256, size=(AGENTS, BATCH, 3, 32, 32), dtype=np.uint8)

    def draw() -> None:
        for agent, batch in enumerate(pixels):
            shown = torch.from_numpy(normalized(augmented(batch, seed=0, agent=agent, step=0)))
            shown.contiguous(memory_format=torch.channels_last)

    work = {"plain": plain, "replicas": ours, "images": draw}
    times: dict[str, dict[str, list[float]]] = {
        clock: {name: [] for name in work} for clock in ("cpu", "wall")
    }
    for turn in range(repeats + 2):
        for name, step in work.items():
            began, began_cpu = time.perf_counter(), time.process_time()
            step()
            if turn > 1:  # the first turns warm up
                times["cpu"][name].append(time.process_time() - began_cpu)
                times["wall"][name].append(time.perf_counter() - began)
    return times


if __name__ == "__main__":
    print(json.dumps(_work(int(sys.argv[1]))))
