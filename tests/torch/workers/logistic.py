"""One agent of every method on logistic regression: final answers, and trackers at every step."""

import sys

import numpy as np

from digrad.graphs import example5
from digrad.torch import DecentralizedOptimizer, ProcessNetwork
from torch_models import LogisticData, LogisticModel, cases


def main(data_path: str, out: str, steps: str, which: str) -> None:
    data, network, results = LogisticData(data_path), ProcessNetwork(example5()), {}
    for case in cases(which):
        model = LogisticModel(data.rows[0].shape[1])
        optimizer = DecentralizedOptimizer(model.parameters(), case.method, network)
        history: dict[str, list] = {name: [] for name in ("y", "g", "w", "s", "v", "u", "m", "vhat")}
        for k in range(int(steps)):
            optimizer.zero_grad()
            data.loss(model, network.agent, k).backward()
            optimizer.step()
            for name, values in history.items():
                if hasattr(optimizer.state_fields, name):
                    values.append(getattr(optimizer.state_fields, name)[0].numpy().copy())
        optimizer.close()
        results[f"{case.label}/x"] = optimizer.estimate()[0].numpy()
        results[f"{case.label}/bytes"] = optimizer.bytes_sent
        results |= {f"{case.label}/{name}": np.array(v) for name, v in history.items() if v}
    np.savez(f"{out}/agent{network.agent}.npz", **results)
    network.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
