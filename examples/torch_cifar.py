"""The paper's ResNet-18 on CIFAR-10, one process per agent, on one machine or many; `digrad data get cifar10` first.

    digrad launch --agents 5 examples/torch_cifar.py --folder run
    digrad launch --agents 5 examples/torch_cifar.py --folder run-ab --method AB --step-size 0.0125

Uses a GPU per process where there are some. Kill an agent, or run it again: it goes on from the last checkpoint.
Network, images and crops are those of `digrad reproduce cifar --preset full`; `--model small_cnn` needs no GPU.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import digrad as dg
from digrad.paper.presets import preset
from digrad.specs.images.problem import ImageProblem
from digrad.torch import Checkpoints, DecentralizedOptimizer, ProcessNetwork, Shard, recalibrate


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="the folder with the batches, if digrad does not find it")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--method", default="CGT", choices=preset("cifar-iid").methods)
    parser.add_argument("--step-size", type=float, help="by default where the search of digrad begins")
    parser.add_argument("--steps", type=int, default=31250)
    parser.add_argument("--test-images", type=int, default=10_000)
    options = parser.parse_args()

    network = ProcessNetwork(dg.graphs.example5())
    train, test = dg.data.cifar10(options.data), dg.data.cifar10(options.data, train=False)
    problem = ImageProblem(
        model=options.model,
        norm="batch",
        images=train,
        chosen=np.arange(len(train)),
        partition=dg.data.partition(train.labels, agents=network.n, scheme="iid"),
        test_images=test,
        test_chosen=np.arange(len(test)),
    )
    gpus = torch.cuda.device_count()
    device = torch.device("cuda", network.agent % gpus) if gpus else torch.device("cpu")
    model = problem.start(seed=0).to(device)
    method: Any = preset("cifar-iid").methods[options.method].build()
    method = replace(method, step_size=options.step_size or method.step_size)
    optimizer = DecentralizedOptimizer(model.parameters(), method, network)
    own = [np.arange(size) for size in problem.sizes]  # every agent counts its images from 0
    shard = Shard(own, agent=network.agent, batch_size=32, replacement=False)
    checkpoints = Checkpoints(options.folder / "checkpoints", optimizer, model=model, keep=2)
    checkpoints.resume()

    while optimizer.k < options.steps:
        rows = shard.batch(optimizer.k).numpy()
        images, labels = problem.batch(network.agent, rows, seed=0, step=optimizer.k)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        if optimizer.k % 500 == 0:
            checkpoints.save()
        if network.agent == 0 and optimizer.k % 100 == 0:
            print(f"step {optimizer.k}: loss {loss.item():.3f}", flush=True)
    optimizer.close()

    with optimizer.averaged_parameters():
        recalibrate(model, (images.to(device) for images, _ in problem.training_part(1000).batches()))
        _, accuracy = problem.test_part(options.test_images).measure(model)
    if network.agent == 0:
        print(f"accuracy of the average {accuracy:.4f}")
    network.close()


if __name__ == "__main__":
    main()
