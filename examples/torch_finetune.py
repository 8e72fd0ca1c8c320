"""Fine-tune the head of a frozen network, with everything a long run needs.

    digrad launch --agents 3 examples/torch_finetune.py --folder run

Parameter groups, a learning-rate scheduler, coupled weight decay, checkpoints that survive a killed agent (run
it again, or kill an agent: it goes on), and TensorBoard (`tensorboard --logdir run`).
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

import digrad as dg
from digrad.torch import Checkpoints, DecentralizedOptimizer, ProcessNetwork, Shard, recalibrate


def build_model() -> nn.Module:
    """Return a small convolutional network whose trunk is frozen, as if it had been trained elsewhere."""
    torch.manual_seed(1)
    trunk = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten())
    trunk.requires_grad_(False)
    head = nn.Sequential(nn.Linear(16 * 36, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
    return nn.Sequential(trunk, head)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()

    network = ProcessNetwork(dg.graphs.from_edges(3, [(0, 1), (1, 2), (2, 0), (0, 2)]))
    digits = dg.data.digits(classes=10)
    images, labels = torch.tensor(digits.features).float(), torch.tensor(digits.labels).long()
    parts = dg.data.partition(digits.labels, agents=network.n, scheme="dirichlet", alpha=0.5, seed=0)
    shard = Shard(parts.indices, agent=network.agent, batch_size=32)

    model = build_model()
    head: Any = model[1]  # pyright: ignore[reportIndexIssue]
    decayed = [*head[0].parameters(), *head[3].parameters()]
    groups = [{"params": decayed, "weight_decay": 1e-3}, {"params": list(head[1].parameters())}]
    optimizer = DecentralizedOptimizer(groups, dg.CGT(step_size=0.2, threshold=1.0), network)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.99)
    others = {"scheduler": scheduler}
    checkpoints = Checkpoints(options.folder / "checkpoints", optimizer, model=model, others=others, keep=2)
    resumed = checkpoints.resume()
    writer = SummaryWriter(options.folder / "tensorboard") if network.agent == 0 else None
    while optimizer.k < options.steps:
        batch = shard.batch(optimizer.k)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        scheduler.step()
        if writer:
            writer.add_scalar("loss", loss.item(), optimizer.k)
            writer.add_scalar("bytes_sent", optimizer.bytes_sent, optimizer.k)
        if optimizer.k % 40 == 0:
            checkpoints.save()
            distance = optimizer.consensus_error()  # costs two rounds, and every agent must ask for it
            if writer:
                writer.add_scalar("consensus_error", distance, optimizer.k)
    optimizer.close()
    with optimizer.averaged_parameters(), torch.no_grad():
        recalibrate(model, images.split(256))  # statistics of the average, not of this agent
        model.eval()
        accuracy = (model(images).argmax(1) == labels).float().mean()
    if writer:
        writer.close()
        print(f"started at step {resumed or 0}, accuracy of the average {accuracy:.3f}")
    network.close()


if __name__ == "__main__":
    main()
