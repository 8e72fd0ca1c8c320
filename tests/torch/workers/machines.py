"""One agent of several machines: it trains with checkpoints, waits for a word once, and stores where it ended."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from digrad import CGT
from digrad.torch import Checkpoints, DecentralizedOptimizer, ProcessNetwork
from digrad.torch.checkpoint import checkpoint_files
from digrad.torch.checkpoint import checkpoints as checkpoint_module
from digrad.torch.launch import attempt as this_attempt
from digrad.torch.transport import shared_memory
from torch_models import network_loss, network_model

STEPS, EVERY, HOLD = (
    12,
    3,
    5,
)  # steps, between checkpoints, and the one at which agents wait for the file `go`
METHOD = CGT(step_size=0.05, threshold=1.0)


def linger(function: Callable[..., Any], sign: Path, seconds: float) -> Callable[..., Any]:
    """Return a function that takes longer, before and after its work; there is a sign meanwhile."""

    def slow(*args: Any) -> Any:
        sign.touch()
        time.sleep(seconds / 2)
        result = function(*args)
        time.sleep(seconds / 2)
        sign.unlink()
        return result

    return slow


def main(out: str, timeout: str = "20", pace: str = "0") -> None:
    folder, attempt = Path(out), this_attempt()
    if float(pace):  # long enough for somebody to strike within a step or a checkpoint
        sign = folder / f"saving-{os.environ['RANK']}"
        checkpoint_files.save_file = linger(save_file, sign, 3 * float(pace))
        checkpoint_module.write_atomically = linger(checkpoint_module.write_atomically, sign, 3 * float(pace))  # pyright: ignore
        shared_memory.INLINE = 0  # every message inside a machine goes through shared memory
    network = ProcessNetwork(timeout=float(timeout))
    model = network_model("mlp", torch.float32)
    optimizer = DecentralizedOptimizer(model.parameters(), METHOD, network)
    checkpoints = Checkpoints(folder / "steps", optimizer, model=model)
    resumed = checkpoints.resume()
    (folder / f"started-{network.agent}-{attempt}").write_text(f"{os.getpid()} {resumed}")
    print(f"step {optimizer.k}", flush=True)
    while optimizer.k < STEPS:
        if optimizer.k == HOLD:
            (folder / f"holding-{network.agent}-{attempt}").touch()
            while not (folder / "go").exists():
                time.sleep(0.02)
        time.sleep(float(pace))
        optimizer.zero_grad()
        network_loss(model, network.agent, optimizer.k, torch.float32).backward()
        optimizer.step()
        if optimizer.k % EVERY == 0:
            checkpoints.save()
    optimizer.close()
    average = optimizer.average()
    fields = {name: value.clone() for name, value in optimizer.state_fields._asdict().items()}
    save_file({**fields, "average": average}, folder / f"final-{network.agent}.safetensors")
    network.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
