"""Models and data of the torch tests: the same in this process and in every worker."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from digrad import AB, CGT, DGD, PushDIGing, PushPull
from digrad.graphs import every, example5, one_peer_exponential, out_star, random_edges, ring, split
from digrad.links import Bursts, Clock, FixedDelay, Links, Uniform, compressors
from digrad.network import Network
from digrad.sampling import WithReplacement
from method_cases import CASES, Case


def cases(which: str) -> list[Case]:
    """Return one case per method (``"methods"``), or all the others (``"variants"``)."""
    seen: set[type] = set()
    first = [case for case in CASES if not (type(case.method) in seen or seen.add(type(case.method)))]
    agents = [case for case in CASES if case.label == "CGT-agents"]
    chosen = first + agents
    return chosen if which == "methods" else [case for case in CASES if case not in chosen]


class LogisticModel(nn.Module):
    """The parameters x of regularised logistic regression."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(d, dtype=torch.float64))

    def forward(self, rows: torch.Tensor, weight: float, power: float) -> torch.Tensor:
        return nn.functional.softplus(-(rows @ self.x)).mean() + weight * (self.x @ self.x) ** (power / 2)


class LogisticData:
    """Signed samples and regularisers of each agent, stored by a test for its workers."""

    def __init__(self, path: Path | str) -> None:
        with np.load(path) as stored:
            n = len(stored["weight"])
            self.rows = [torch.from_numpy(stored[f"rows{i}"]) for i in range(n)]
            self.weight, self.power = stored["weight"].tolist(), stored["power"].tolist()
        self.sampler = WithReplacement(tuple(len(rows) for rows in self.rows), 16, 3)

    def loss(self, model: nn.Module, agent: int, k: int) -> torch.Tensor:
        batch = torch.from_numpy(self.sampler.batches(k, 1)[0, agent].astype(np.int64))
        return model(self.rows[agent][batch], self.weight[agent], self.power[agent])


def network_model(name: str, dtype: torch.dtype) -> nn.Module:
    """Return an MLP or a small CNN whose start is the same everywhere."""
    generator_state = torch.random.get_rng_state()
    torch.manual_seed(5)
    layers: dict[str, list[nn.Module]] = {
        "mlp": [nn.Linear(64, 33), nn.Tanh(), nn.Linear(33, 10)],
        "wide": [nn.Linear(64, 2048), nn.Tanh(), nn.Linear(2048, 10)],
        "cnn": [
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 5, 3),
            nn.BatchNorm2d(5),
            nn.ReLU(),
            nn.Conv2d(5, 7, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(7 * 16, 10),
        ],
    }
    model = nn.Sequential(*layers[name]).to(dtype)
    torch.random.set_rng_state(generator_state)
    return model


def network_loss(model: nn.Module, agent: int, k: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the loss of a batch that depends on the agent and the step only."""
    generator = torch.Generator().manual_seed(1000 * agent + k)
    images = torch.rand(12, 64, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(0, 10, (12,), generator=generator)
    return nn.functional.cross_entropy(model(images), labels)


_LABELS = (
    "CGT",
    "CGT-agents",
    "AB",
    "PushDIGing",
    "ADDOPT",
    "SGP",
    "FROST",
    "DSGT",
    "DAMSGrad",
    "CDSGDNesterov",
)
BITWISE_METHODS = {case.label: case.method for case in CASES if case.label in _LABELS}
BITWISE_STEPS = {"small": 6, "large": 3, "deadline": 12}


def bitwise_network(messages: str | None) -> Network:
    """Return the network of a run whose every bit is compared."""
    return Network(example5(), links=Links(compressor=getattr(compressors, messages)()) if messages else None)


def bitwise_settings(size: str) -> list[tuple[str, str, torch.dtype, str | None]]:
    """Return ``(method, model, dtype, format of messages)`` of runs whose every bit is compared.

    Args:
        size: ``small``: both networks with CGT, the other methods on one. ``large``: messages long enough to be
            read from a neighbour's memory. ``deadline``: methods whose messages may be late.
    """
    if size == "deadline":
        return [
            ("CGT", "wide", torch.float32, None),
            *((label, "mlp", torch.float32, None) for label in ("CGT", "AB", "PushDIGing", "ADDOPT", "SGP")),
        ]
    if size == "large":
        return [
            ("CGT", "wide", torch.float32, None),
            ("CGT", "wide", torch.float64, None),
            ("CGT", "wide", torch.float32, "bfloat16"),
            ("PushDIGing", "wide", torch.float32, None),  # sends its weights apart
            ("FROST", "wide", torch.float64, None),
        ]
    floats = (torch.float32, torch.float64)
    return [
        *(("CGT", model, dtype, None) for model in ("mlp", "cnn") for dtype in floats),
        *((label, "mlp", torch.float32, None) for label in BITWISE_METHODS if label != "CGT"),
        *(
            (label, "mlp", torch.float32, "bfloat16")
            for label in ("CGT", "AB", "PushDIGing", "ADDOPT", "FROST", "DSGT")
        ),
        ("CGT", "mlp", torch.float64, "float32"),
        ("SGP", "mlp", torch.float32, "float16"),
    ]


class ChangingCase(NamedTuple):
    """A method on a network that changes with the iteration, or on one whose links change the messages."""

    label: str
    method: Any
    network: Network


class Point(nn.Module):
    """A point of the plane, where agent i minimises half of x' diag(a_i) x minus b_i' x of the example."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor(START, dtype=torch.float64))

    def differentiate(self, agent: int) -> None:
        """Set the gradient."""
        i = agent % 5
        curvature = torch.tensor([1.0 + i, 5.0 - i], dtype=torch.float64)
        linear = torch.tensor([(1, 0), (0, 2), (-3, 1), (4, 4), (3, -2)][i], dtype=torch.float64)
        self.x.grad = curvature * self.x.detach() - linear


START = (3.1, -2.7)
HARD = Links(
    loss=0.3, delay=3, awake=[1.0, 0.8, 0.5, 0.9, 0.7], compressor=compressors.top_k(1), noise=0.01, seed=2
)
CHANGING_STEPS = 20
LEAFLESS_STEPS = 8


LEAFLESS = (  # agent 0 has no in-neighbours, and the others no out-neighbours
    DGD(step_size=0.02, mixing="row"),
    Network(out_star(3), links=Links(compressor=compressors.top_k(1))),
)


MISSED = Clock(  # 32 bytes take two seconds on the last edge, and agent 4 computes for two steps
    compute=[0.2, 0.2, 0.2, 0.2, 1.5],
    latency=Uniform(0.2, 1.5),
    bandwidth=[1e3, 1e3, 1e3, 1e3, 1e3, 1e3, 16.0],
    deadline=1.0,
)
RESTARTED = {  # everything at once that is remembered between two steps, or replayed
    "replicas": (
        CGT(step_size=0.02, threshold=2.0),
        Network(
            ring(3),
            links=Links(
                loss=Bursts(0.3, 3),
                awake=0.8,
                compressor=compressors.top_k(1),
                noise=0.01,
                clock=Clock(compute=Uniform(0.1, 1.5), latency=Uniform(0.0, 1.5), deadline=1.0),
            ),
        ),
    ),
    "processes": (
        CGT(step_size=0.02, threshold=2.0),
        Network(split(ring(3), 2), links=Links(compressor=compressors.quantize(3))),
    ),
}


def changing_cases() -> list[ChangingCase]:
    """Return the cases, all with five agents."""
    methods = {
        "CGT": CGT(step_size=0.02, threshold=2.0),
        "AB": AB(step_size=0.02),
        "PushDIGing": PushDIGing(step_size=0.01),
    }
    graphs = {
        "split": split(example5(), 3),
        "random edges": random_edges(example5(), 0.5),
        "local steps": every(5, example5()),
        "one peer": one_peer_exponential(5),
    }
    found = [
        ChangingCase(f"{name}, {label}", methods[name], Network(graph))
        for label, graph in graphs.items()
        for name in ("CGT", "PushDIGing")
    ]
    rows = DGD(step_size=0.02, mixing="row")
    found.append(ChangingCase("DGD, random edges", rows, Network(graphs["random edges"])))
    found += [
        ChangingCase(f"{type(method).__name__}, {label}", method, Network(graph, links=links))
        for label, method, graph, links in (
            ("loss", methods["CGT"], example5(), Links(loss=0.3)),
            ("late", methods["AB"], example5(), Links(loss=Bursts(0.3, 4), delay=2, seed=1)),
            ("asleep", PushPull(step_size=0.02), split(example5(), 2), Links(awake=0.7, delay=FixedDelay(1))),
            ("all", methods["CGT"], split(example5(), 2), HARD),
            (
                "random entries",
                methods["CGT"],
                example5(),
                Links(loss=0.2, compressor=compressors.random_k(1)),
            ),
            ("weights", methods["PushDIGing"], example5(), Links(loss=0.1, delay=1)),
            (
                "compressed weights",
                methods["PushDIGing"],
                example5(),
                Links(compressor=compressors.quantize(2)),
            ),
            ("levels", methods["CGT"], split(example5(), 2), Links(compressor=compressors.quantize(4))),
            ("entries", methods["CGT"], every(2, example5()), Links(compressor=compressors.top_k(1))),
            ("signs", methods["AB"], example5(), Links(compressor=compressors.sign())),
            ("kept", methods["CGT"], example5(), Links(loss=0.3, push="keep", pull="renormalise")),
            ("asleep, averaged", rows, example5(), Links(awake=0.6, pull="renormalise")),
            ("last", rows, example5(), Links(loss=0.3, delay=2, pull="last")),
            ("deadline", methods["AB"], example5(), Links(loss=0.1, clock=MISSED)),
            (
                "compressed, deadline",
                methods["CGT"],
                example5(),
                Links(loss=0.1, clock=MISSED, compressor=compressors.bfloat16()),
            ),
        )
    ]
    return found + [
        ChangingCase(
            f"{type(method).__name__}, {label}, short",
            method,
            Network(graph, links=Links(compressor=compressors.bfloat16())),
        )
        for label, method, graph in (
            ("constant", methods["AB"], example5()),
            ("constant", rows, example5()),
            ("split", methods["PushDIGing"], graphs["split"]),
            ("random edges", methods["CGT"], graphs["random edges"]),
        )
    ]
