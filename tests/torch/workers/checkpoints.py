"""One agent that saves, meets damaged and foreign checkpoints, and resumes; it prints one line per attempt."""

import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler

from digrad import AB, CGT
from digrad.errors import DigradError
from digrad.graphs import from_edges, ring
from digrad.schedules import InverseSqrt
from digrad.torch import Checkpoints, DecentralizedOptimizer, ProcessNetwork

METHOD = CGT(step_size=0.05, threshold=1.0)
STEPS, HALF = 12, 6


def tell(attempt: str, **facts: Any) -> None:
    print(json.dumps({"attempt": attempt, **facts}), flush=True)


def report(attempt: str, action: Callable[[], Any]) -> None:
    """Print what came out of an action, or its error."""
    try:
        tell(attempt, result=action(), error=None)
    except DigradError as error:
        tell(attempt, error=f"{type(error).__name__}: {error}")


# --- schedulers ------------------------------------------------------------------------------------------------


class Decay:
    """A rate given by an object, whose attributes torch stores."""

    def __init__(self, base: float) -> None:
        self.base = base

    def __call__(self, epoch: int) -> float:
        return self.base**epoch


def sequence(o: Any) -> Any:
    return lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=3), lr_scheduler.MultiStepLR(o, [2, 6])], [3]
    )


def chain(o: Any) -> Any:
    return lr_scheduler.ChainedScheduler(
        [lr_scheduler.ExponentialLR(o, 0.9), lr_scheduler.MultiStepLR(o, [3, 8])]
    )


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [3, 8, 10]),
    "SequentialLR": sequence,
    "ChainedScheduler": chain,
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=STEPS + 1, cycle_momentum=False),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=2),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "LambdaLR with an object": lambda o: lr_scheduler.LambdaLR(o, Decay(0.9)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.9),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=4, cycle_momentum=False),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 4),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 10),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, total_iters=9),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, total_iters=8),
    "GradScaler": lambda o: torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=4),
}


def advance(model: nn.Module, optimizer: DecentralizedOptimizer, other: Any) -> float:
    """Take one step and return the rate, or the scale, of the next."""
    optimizer.zero_grad()
    loss = model(torch.ones(1, 2)).square().mean()
    if isinstance(other, torch.amp.GradScaler):
        other.scale(loss * (float("inf") if optimizer.k == 8 else 1.0)).backward()
        other.step(optimizer)
        other.update()
        return other.get_scale()
    loss.backward()
    optimizer.step()
    other.step(*([1.0] if isinstance(other, lr_scheduler.ReduceLROnPlateau) else []))
    return optimizer.param_groups[0]["lr"]


def schedulers(network: ProcessNetwork, folder: Path) -> None:
    for name, make in SCHEDULERS.items():
        rates: dict[str, list[float]] = {"uninterrupted": [], "resumed": []}
        for kind, found in rates.items():
            model = nn.Linear(2, 1)
            optimizer = DecentralizedOptimizer(model.parameters(), METHOD, network)
            other = make(optimizer)
            checkpoints = Checkpoints(folder / name, optimizer, others={"other": other})
            if kind == "resumed":
                assert checkpoints.resume() == HALF
            while optimizer.k < STEPS:
                found.append(advance(model, optimizer, other))
                if kind == "uninterrupted" and optimizer.k == HALF:
                    checkpoints.save()
            optimizer.close()
        tell(name, **rates)


# --- damage, and other programs --------------------------------------------------------------------------------


class Agent:
    """A model with buffers, its optimizer and a scheduler; each new one starts elsewhere."""

    count = 0

    def __init__(
        self,
        network: ProcessNetwork,
        folder: Path,
        *,
        method: Any = METHOD,
        width: int = 3,
        dtype: torch.dtype = torch.float32,
        extra_buffer: bool = False,
        others: dict[str, Any] | None = None,
    ) -> None:
        Agent.count += 1
        torch.manual_seed(100 * network.agent + Agent.count)
        self.model = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 1)).to(dtype)
        if extra_buffer:
            self.model.register_buffer("extra", torch.zeros(2))
        self.dtype = dtype
        self.optimizer = DecentralizedOptimizer(self.model.parameters(), method, network)
        self.scheduler = lr_scheduler.MultiStepLR(self.optimizer, [2, 5] if method is METHOD else [])
        entries = {"scheduler": self.scheduler, **(others or {})}
        self.checkpoints = Checkpoints(folder, self.optimizer, model=self.model, others=entries)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.randn(6, 4).to(self.dtype)).square().mean().backward()
            self.optimizer.step()
            self.scheduler.step()

    def facts(self) -> dict[str, Any]:
        return {
            "x": self.optimizer.estimate().float().flatten().tolist(),
            "lr": [group["lr"] for group in self.optimizer.param_groups],
            "scheduler": self.scheduler.last_epoch,
            "mean": self.model[1].running_mean.tolist(),  # pyright: ignore
            "rng": torch.get_rng_state().sum().item(),
        }


class Odd:
    """Something whose state is whatever it was given."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return {"inner": [self.state]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state = state_dict["inner"][0]


class Scenes:
    """Attempts to resume from a damaged or foreign copy of the same two steps."""

    def __init__(self, network: ProcessNetwork, folder: Path) -> None:
        self.network, self.folder, self.stored = network, folder, folder / "steps"
        agent = Agent(network, self.stored)
        agent.train(1)
        agent.checkpoints.save()
        agent.train(2)
        agent.checkpoints.save()
        tell("saved", result=agent.facts(), error=None)
        agent.optimizer.close()

    def copy(self, name: str, damage: Callable[[Path], Any] = lambda folder: None) -> Path:
        """Return a damaged copy, made by one agent while the others wait."""
        folder = self.folder / name.replace(" ", "-")
        if self.network.agent == 0:
            shutil.copytree(self.stored, folder)
            damage(folder)
        self.network.exchange({}, "test")
        return folder

    def play(
        self,
        name: str,
        damage: Callable[[Path], Any] = lambda folder: None,
        network: ProcessNetwork | None = None,
        **program: Any,
    ) -> None:
        folder = self.copy(name, damage)
        for mode in ("exact", "tracking restart"):
            agent = Agent(network or self.network, folder, **program)
            before = agent.facts()["x"]
            report(
                f"{name}, {mode}",
                lambda agent=agent, mode=mode, before=before: {
                    "k": agent.checkpoints.resume(mode),
                    "new": before,
                    **agent.facts(),
                },
            )
            agent.optimizer.close()


def rewrite(content: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / "step-0000000003" / "COMMITTED").write_text(content)


def truncate_marker(folder: Path) -> None:
    marker = folder / "step-0000000003" / "COMMITTED"
    marker.write_text(marker.read_text()[:40])


def truncate_all(folder: Path) -> None:
    for path in folder.glob("*/agent-*"):
        os.truncate(path, 100)


def add_old_folder(folder: Path) -> None:
    shutil.copytree(folder / "step-0000000001", folder / "step-old")


def lose_agent_1(folder: Path) -> None:
    for path in folder.glob("*/agent-1.safetensors"):
        path.unlink()


def resuming(network: ProcessNetwork, folder: Path) -> None:
    scenes = Scenes(network, folder)
    scenes.play("untouched")
    scenes.play("truncated marker", truncate_marker)
    scenes.play("list as marker", rewrite("[]"))
    scenes.play("other format", rewrite('{"format": 1, "sha256": []}'))
    scenes.play("old folder", add_old_folder)
    scenes.play("lost files", lose_agent_1)
    scenes.play("nothing readable", truncate_all)
    scenes.play("new entry", others={"scaler": torch.amp.GradScaler("cpu")})
    scenes.play("new buffer", extra_buffer=True)
    scenes.play("other dtype", dtype=torch.float64)
    scenes.play("other model", width=5)
    scenes.play("other method", method=AB(step_size=0.05))
    scenes.play(
        "other graph", network=ProcessNetwork(from_edges(3, [(0, 1), (1, 2), (2, 0), (0, 2)]), timeout=20)
    )
    follow_a_schedule(network, folder / "schedule")


def follow_a_schedule(network: ProcessNetwork, folder: Path) -> None:
    """The step size of the method is a schedule, which a tracking restart goes on with."""
    for mode in ("save", "tracking restart"):
        optimizer = DecentralizedOptimizer(
            nn.Linear(2, 1).parameters(), AB(step_size=InverseSqrt(scale=0.1)), network
        )
        checkpoints = Checkpoints(folder, optimizer)
        if mode != "save":
            assert checkpoints.resume("tracking restart") == 4
        for _ in range(4):
            optimizer.step()
        if mode == "save":
            checkpoints.save()
        else:
            lr = optimizer.param_groups[0]["lr"]
            tell("schedule", result=[lr, InverseSqrt(scale=0.1)(7)], error=None)
        optimizer.close()


def saving(network: ProcessNetwork, folder: Path) -> None:
    """Agent 1 cannot store or write what it has; nobody commits."""
    odd = network.agent == 1
    for name, value in {
        "function": len,
        "object": object(),
        "numpy": torch.ones(2).numpy(),
        "itself": (loop := []) or loop.append(loop) or loop,
    }.items():
        agent = Agent(network, folder / name, others={"mine": Odd(value if odd else 1)})
        report(f"refused {name}", lambda agent=agent: str(agent.checkpoints.save()))
        tell(f"written {name}", result=bool(list((folder / name).glob("step-*"))), error=None)
        agent.optimizer.close()
    agent = Agent(network, folder / "unwritable")
    if odd:
        (folder / "unwritable" / "step-0000000000" / "agent-1.safetensors").mkdir(parents=True)
    report("unwritable", lambda: str(agent.checkpoints.save()))
    tell("marker", result=bool(list((folder / "unwritable").glob("*/COMMITTED"))), error=None)
    agent.optimizer.k = 7 if odd else 5
    report("different steps", lambda: str(agent.checkpoints.save()))
    agent.optimizer.k = 0
    agent.optimizer.close()


def memory(network: ProcessNetwork, folder: Path) -> None:
    """The peak that saving adds, in flat buffers."""
    model = nn.Linear(2000, 1000, bias=False)
    optimizer = DecentralizedOptimizer(model.parameters(), METHOD, network)
    optimizer.step()
    checkpoints = Checkpoints(folder, optimizer)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = peak()
    checkpoints.save()
    tell("memory", result=(peak() - before) / (4 * 2_000_000), error=None)
    optimizer.close()


def peak() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def three_agents(folder: Path) -> None:
    network = ProcessNetwork(ring(3), timeout=20)
    memory(network, folder / "memory")
    schedulers(network, folder / "schedulers")
    saving(network, folder / "saving")
    resuming(network, folder / "resuming")
    network.close()


def two_agents(folder: Path) -> None:
    """Resume with two agents what three have stored."""
    network = ProcessNetwork(ring(2), timeout=20)
    for mode in ("exact", "tracking restart"):
        agent = Agent(network, folder / "resuming" / "untouched")
        report(mode, lambda agent=agent, mode=mode: {"k": agent.checkpoints.resume(mode), **agent.facts()})
        agent.optimizer.close()
    network.close()


# --- agents that are groups ------------------------------------------------------------------------------------


def groups(folder: Path, out: str) -> None:
    """Two agents of two processes each train eight steps, from where they were; every process draws by itself."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("agents", "dp"))
    network = ProcessNetwork(ring(2), group=mesh.get_group("agents"), timeout=20)
    rank, half = int(os.environ["RANK"]), mesh.get_local_rank("dp")

    def build() -> tuple[nn.Module, nn.Module, DecentralizedOptimizer, Checkpoints]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)).double()
        optimizer = DecentralizedOptimizer(model.parameters(), METHOD, network)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parallel = DistributedDataParallel(
                model, process_group=mesh.get_group("dp"), broadcast_buffers=False
            )
        torch.manual_seed(rank)
        return model, parallel, optimizer, Checkpoints(folder / "steps", optimizer, model=model, keep=2)

    model, parallel, optimizer, checkpoints = build()
    tell("exact", result=checkpoints.resume(), error=None)
    while optimizer.k < 8:
        optimizer.zero_grad()
        parallel(torch.randn(8, 5).double()).square().mean().backward()
        optimizer.step()
        if optimizer.k in (4, 6):
            checkpoints.save()
    fields = {name: value.clone() for name, value in optimizer.state_fields._asdict().items()}
    fields |= {name: value for name, value in model.named_buffers()} | {"rng": torch.get_rng_state()}
    save_file(fields, folder / f"{out}-{network.agent}-{half}.safetensors")
    optimizer.close()

    network.exchange({}, "test")
    if rank == 1:  # the second process of agent 0
        (folder / "steps" / "step-0000000006" / "agent-0-process-1.safetensors").unlink()
    network.exchange({}, "test")
    _, _, optimizer, checkpoints = build()
    step = checkpoints.resume("tracking restart")
    tell("tracking restart", result=[step, optimizer.estimate().tolist()], error=None)
    optimizer.close()
    network.close()
    dist.barrier()  # the store ends with its process, of which only half of the others are neighbours


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
