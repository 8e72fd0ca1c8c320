"""One agent of two hosts: what it says it has sent, and what the counter of its interface says."""

import json
import os
import sys
from pathlib import Path

import torch

from digrad import CGT, Network
from digrad.graphs import ring
from digrad.links import Links, compressors
from digrad.torch import DecentralizedOptimizer, ProcessNetwork

NUMBERS, STEPS = 500_000, 12
LINKS = {
    "full": None,
    "bfloat16": Links(compressor=compressors.bfloat16()),
    "quantize": Links(compressor=compressors.quantize(4)),
    "top_k": Links(compressor=compressors.top_k(NUMBERS // 50)),
}


def counter() -> int:
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def main(folder: str) -> None:
    found = {}
    for name, links in LINKS.items():
        for deadline in (None, 0.5):
            network = ProcessNetwork(Network(ring(2), links=links), timeout=60, deadline=deadline)
            x = torch.nn.Parameter(
                torch.randn(NUMBERS, generator=torch.Generator().manual_seed(network.agent))
            )
            network.exchange({}, "before")
            before = counter()
            optimizer = DecentralizedOptimizer([x], CGT(step_size=0.01, threshold=1.0), network)
            for _ in range(STEPS):
                x.grad = x.detach().clone()
                optimizer.step()
            optimizer.close()
            network.exchange({}, "after")
            found[f"{name}, {deadline}"] = [optimizer.bytes_sent, counter() - before]
            network.transports.close()
    Path(folder, f"bytes-{os.environ['RANK']}").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
