"""One agent of several machines: it trains with checkpoints, waits for a word once, and stores where it ended."""

import os
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from digrad import CGT
from digrad.torch import Checkpoints, DecentralizedOptimizer, ProcessNetwork
from torch_models import network_loss, network_model

STEPS, EVERY, HOLD = (
    12,
    3,
    5,
)  # steps, between checkpoints, and the one at which agents wait for the file `go`
METHOD = CGT(step_size=0.05, threshold=1.0)


def main(out: str, timeout: str = "20") -> None:
    folder, attempt = Path(out), os.environ["TORCHELASTIC_RESTART_COUNT"]
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
