"""One agent of two hosts: what it says it has sent, and what the counter of its interface says."""

import itertools
import json
import os
import sys
from pathlib import Path

import torch

from digrad import CGT, Network
from digrad.graphs import ring
from digrad.links import Links, compressors
from digrad.torch import DecentralizedOptimizer, ProcessNetwork
from digrad.torch.launch import ADDRESS_VARIABLE, STORE_VARIABLE
from digrad.torch.transport.addresses import published_address
from digrad.torch.transport.curve_keys import KEY_VARIABLE

NUMBERS, STEPS = 100_000, 6
LINKS = {
    "full": None,
    "bfloat16": Links(compressor=compressors.bfloat16()),
    "quantize": Links(compressor=compressors.quantize(4)),
    "top_k": Links(compressor=compressors.top_k(NUMBERS // 50)),
}


def counter() -> int:
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    (eth0,) = [line.split() for line in lines if line.strip().startswith("eth0:")]
    return int(eth0[9])


def main(folder: str) -> None:
    found = {}
    for key, (name, links), deadline in itertools.product(("", "run.key"), LINKS.items(), (None, 0.5)):
        if key:  # as launch sets them; all have joined already
            os.environ |= {STORE_VARIABLE: "", ADDRESS_VARIABLE: str(published_address("eth0"))}
            os.environ[KEY_VARIABLE] = str(Path(folder, key))
        network = ProcessNetwork(Network(ring(2), links=links), timeout=60, deadline=deadline)
        x = torch.nn.Parameter(torch.randn(NUMBERS, generator=torch.Generator().manual_seed(network.agent)))
        network.exchange({}, "before")
        before = counter()
        optimizer = DecentralizedOptimizer([x], CGT(step_size=0.01, threshold=1.0), network)
        for _ in range(STEPS):
            x.grad = x.detach().clone()
            optimizer.step()
        optimizer.close()
        network.exchange({}, "after")
        found[f"{key}, {name}, {deadline}"] = [optimizer.bytes_sent, counter() - before]
        network.transports.close()
    Path(folder, f"bytes-{os.environ['RANK']}").write_text(json.dumps(found))
    ProcessNetwork(ring(2)).close()  # all leave together


if __name__ == "__main__":
    main(*sys.argv[1:])
