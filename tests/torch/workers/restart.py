"""One agent that trains with checkpoints, kills itself once if told to, and stores where it ended."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from digrad import CGT
from digrad.torch import Checkpoints, DecentralizedOptimizer, ProcessNetwork
from digrad.torch.checkpoint import checkpoint_files
from digrad.torch.checkpoint import checkpoints as checkpoint_module
from digrad.torch.launch import attempt as this_attempt
from digrad.torch.transport import shared_memory
from torch_models import network_loss, network_model
from torch_processes import listening_ports

STEPS, EVERY = 20, 4
write_atomically = checkpoint_module.write_atomically


def kill_myself(folder: Path) -> None:
    (folder / "killed").write_text(str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)


def main(out: str) -> None:
    folder, plan = Path(out), json.loads(os.environ.get("KILL", "{}"))
    attempt = this_attempt()
    if plan.get("direct"):
        shared_memory.INLINE = 0  # every message goes through shared memory
    network = ProcessNetwork(timeout=20)
    with (folder / f"started-{attempt}-{network.agent}").open("w") as file:
        ports = {int(os.environ["MASTER_PORT"])} | listening_ports()
        file.write(" ".join(map(str, (time.time(), *ports))))
    doomed = attempt == 0 and plan.get("agent") == network.agent

    def is_the_end(written: str) -> bool:
        return doomed and optimizer.k >= plan["k"] and plan["inside"] == written

    def write_half(path: Path, data: str) -> Path:
        if is_the_end("COMMITTED"):
            Path(path).with_name(".half.tmp").write_text(data[: len(data) // 2])
            kill_myself(folder)
        return write_atomically(path, data)

    def save_half(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        save_file(tensors, path, metadata)
        if is_the_end("agent"):
            os.truncate(path, path.stat().st_size // 2)
            kill_myself(folder)

    if "inside" in plan:
        checkpoint_module.write_atomically = write_half  # pyright: ignore
        checkpoint_files.save_file = save_half
    torch.manual_seed(network.agent)
    model = network_model("cnn", torch.float32)
    optimizer = DecentralizedOptimizer(model.parameters(), CGT(step_size=0.05, threshold=1.0), network)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.5)
    checkpoints = Checkpoints(
        folder / "steps", optimizer, model=model, others={"scheduler": scheduler}, keep=2
    )
    resumed = checkpoints.resume()
    if resumed is not None:
        (folder / f"resumed-{network.agent}").write_text(str(resumed))
    while optimizer.k < STEPS:
        if doomed and "inside" not in plan and optimizer.k == plan["k"]:
            # A timer strikes wherever the agent is by then: computing, sending, receiving, writing.
            threading.Timer(plan.get("seconds", 0.0), kill_myself, [folder]).start()
            time.sleep(0.0 if "seconds" in plan else 60.0)
        optimizer.zero_grad()
        (network_loss(model, network.agent, optimizer.k, torch.float32) + 0 * torch.rand(())).backward()
        optimizer.step()
        scheduler.step()
        if optimizer.k % EVERY == 0:
            checkpoints.save()
    fields = {name: value.clone() for name, value in optimizer.state_fields._asdict().items()}
    fields |= {name: value for name, value in model.named_buffers()} | {"rng": torch.get_rng_state()}
    save_file(fields, folder / f"final-{network.agent}.safetensors")
    optimizer.close()
    network.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
