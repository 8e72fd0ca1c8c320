"""Checkpoints of a network of processes: one file per process, all at the same step, valid together or not at all.

A step is committed once every process has written its file: a marker then lists the files with their checksums.
A kill at any moment leaves the previous committed step intact. Files are safetensors; nothing is pickled.
"""

import hashlib
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol

import torch
import torch.distributed as dist
from safetensors import SafetensorError

from digrad import checks
from digrad._internal.error_text import agents_text
from digrad._internal.files import write_atomically
from digrad.errors import ArgumentError, CheckpointError, DisagreementError
from digrad.torch.checkpoint.checkpoint_files import (
    FORMAT,
    MARKER,
    OtherFormatError,
    Stored,
    committed_steps,
    delete_file,
    lack_of_room,
    place_of,
    read_file,
    reserve,
    step_folder,
    write_file,
)
from digrad.torch.checkpoint.serialization import decode, decode_links, encode, encode_links
from digrad.torch.engines.flat_parameters import nonfinite_rows
from digrad.torch.engines.replica_engine import ALL
from digrad.torch.optimizer import DecentralizedOptimizer
from digrad.torch.process_network import ProcessNetwork
from digrad.torch.replicas import Replicas
from digrad.torch.transport.coordination import Coordination, difference

SAVE, RESUME = "Checkpoints.save()", "Checkpoints.resume()"
TRACKING = "use resume('tracking restart')"
_instances = itertools.count()  # checkpoints made so far where agents are groups, the same on every process


class Stateful(Protocol):
    """Anything whose state is made of numbers, texts, tensors and containers of them, such as a scheduler."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take the state over."""
        ...


class Checkpoints:
    """The checkpoints of one agent's optimizer, or of replicas, in a folder, shared between the agents or not.

    Where an agent is a group of processes (DDP) each of them constructs it, saves and resumes, and has a file of
    its own, because random numbers and buffers may differ inside the group. All processes must construct it.

    Args:
        folder: Holds one folder per step.
        optimizer: Whose state is stored.
        model: Its buffers, such as the statistics of BatchNorm, are stored too; replicas have their models.
        others: Schedulers, scalers and the like, by name.
        keep: How many committed steps to keep.

    Raises:
        ArgumentError: The optimizer is of another kind, or the network has only some of the processes, and the
            rest are not other processes of the same agents.
        CheckpointError: An agent cannot write to the folder, its disk has no room for a state of everybody who shares
            it, or another run uses it; raised on every agent.
    """

    def __init__(
        self,
        folder: Path | str,
        optimizer: DecentralizedOptimizer | Replicas,
        *,
        model: torch.nn.Module | None = None,
        others: Mapping[str, Stateful] | None = None,
        keep: int = 3,
    ) -> None:
        if not isinstance(optimizer, DecentralizedOptimizer | Replicas):
            raise ArgumentError(
                "`optimizer` of Checkpoints must be a DecentralizedOptimizer or Replicas, but got "
                f"{type(optimizer).__name__}; put torch optimizers and schedulers into `others`."
            )
        self._folder, self._optimizer, self._model = Path(folder), optimizer, model
        if isinstance(optimizer, Replicas) and model is None:
            self._model = torch.nn.ModuleList(optimizer.models)
        self._others = dict(others or {})
        self._keep = checks.count(keep, "keep", "Checkpoints")
        self._network = optimizer.network
        self._handshake: Any = self._network.coordination
        self._process, self._processes = 0, 1
        if isinstance(self._network, ProcessNetwork) and dist.get_world_size() > self._network.n:
            self._join_the_other_groups()
        self._reserve()
        self._noted: dict[str, torch.Tensor] = {}
        optimizer.end_when_preempted(self)

    def note_end_of_step(self) -> None:
        """Remember random numbers and buffers: the next batch changes them, but the run ends before its step."""
        self._noted = {name: value.clone() for name, value in self._passing().items()}

    def save_noted(self) -> Path:
        """Write the current step with the random numbers and buffers that were remembered; every agent must call."""
        return self._save(self._noted)

    def save(self) -> Path:
        """Write the current step and commit it together with all agents; every agent must call.

        Saving a committed step again withdraws it until the new files are complete.

        Returns:
            The folder of the step.

        Raises:
            CheckpointError: The agents are at different steps, a state is not finite or cannot be stored (nothing is
                written then), or an agent cannot write its file; raised on every agent. The step is not committed.
            DisagreementError: Rates or schedules differ between the agents; nothing is written.
            CommunicationError: An agent has gone; the step is not committed.
        """
        return self._save(self._passing())

    def _save(self, passing: dict[str, torch.Tensor]) -> Path:
        k, tensors, header = self._optimizer.k, {}, {}
        with self._optimizer.together("save"):
            problem = self._broken()
            try:
                tensors, header = self._content(passing)
            except CheckpointError as error:
                problem = problem or str(error)
            everyone = self._report(problem, SAVE, k=k, settings=self._optimizer.settings())
        steps = [one["k"] for one in everyone]
        if any(step != k for step in steps):
            self._fail(
                f"the agents are at different steps ({steps}); call save at the same step on all of them",
                SAVE,
            )
        differing = difference([one["settings"] for one in everyone], [one["agent"] for one in everyone])
        if differing:
            self._handshake.leave_together()
            raise DisagreementError(f"{SAVE}: {differing}")
        path, digest = step_folder(self._folder, k) / self._name, ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            (path.parent / MARKER).unlink(missing_ok=True)  # its checksums are about to be wrong
            digest = write_file(path, tensors, {"digrad": json.dumps(header)})
        except (OSError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
            problem = f"`{path}` cannot be written ({error})"
        written = self._report(problem, SAVE, name=path.name, sha256=digest)
        marker = {"format": FORMAT, "k": k, "sha256": {one["name"]: one["sha256"] for one in written}}
        try:
            write_atomically(path.parent / MARKER, json.dumps(marker))
        except OSError as error:
            problem = f"`{path.parent / MARKER}` cannot be written ({error})"
        self._report(problem, SAVE)  # nobody deletes before everybody has committed
        self._prune()
        return path.parent

    def resume(self, mode: Literal["exact", "tracking restart"] = "exact") -> int | None:
        """Go on from the stored state; every agent must call.

        Args:
            mode: ``"exact"``: from the last step that all agents have committed, as if nothing had happened.
                ``"tracking restart"``: keep every agent's estimate and start its trackers anew, for a changed
                graph, a lost file, or steps that differ between agents. Each agent reads its newest file that is
                not damaged, and also takes over random numbers, settings of the parameter groups, buffers and
                ``others`` as far as they fit. An agent without a file of the latest step takes the settings and
                ``others`` of one that has it; without any file it keeps its new model.

        Returns:
            The step reached, or None if there is no checkpoint.

        Raises:
            CheckpointError: A file is damaged or of another run; raised on every agent. A tracking restart passes
                over damaged files, unless no agent has any other.
        """
        checks.choice(mode, "mode", "Checkpoints.resume", ("exact", "tracking restart"))
        return self._resume_exactly() if mode == "exact" else self._restart_tracking()

    def _resume_exactly(self) -> int | None:
        own = [
            k for k in committed_steps(self._folder) if (step_folder(self._folder, k) / self._name).exists()
        ]
        everyone = self._exchange(RESUME, steps=own)
        common = set.intersection(*(set(one["steps"]) for one in everyone))
        if not common:
            if any(one["steps"] for one in everyone):
                self._fail(f"the agents have no committed step in common; {TRACKING}", RESUME)
            return None
        k, stored, problem = max(common), None, ""
        try:
            stored = read_file(self._folder, k, self._name)
            problem = self._another_model(stored) or self._difference(stored)
        except OtherFormatError as error:
            problem = str(error)
        except CheckpointError as error:
            problem = f"{error}; delete the folder of step {k} to continue from an older one, or {TRACKING}"
        self._report(problem, RESUME)
        assert stored is not None
        self._load_others(stored)
        state = {"k": k, "method": stored.header["method"], "fields": stored.part("field/")}
        state["bytes_sent"] = stored.header["bytes_sent"]
        if "last_grad" in stored.tensors:
            state["last_grad"] = stored.tensors["last_grad"].to(self._optimizer.estimate())
        device = self._optimizer.estimate().device
        links = decode_links(stored.header["links"], stored.tensors)
        state["links"] = {key: value.to(device) for key, value in links.items()}
        self._optimizer.load_state_dict({"state": state, "param_groups": stored.groups})
        self._load_buffers(stored)
        torch.set_rng_state(stored.tensors["rng"])
        return k

    def _restart_tracking(self) -> int | None:
        stored, damage = self._newest()
        k = -1 if stored is None else stored.header["k"]
        problem = "" if stored is None else self._another_model(stored)
        shared = {} if stored is None else {name: stored.header[name] for name in ("groups", "others")}
        everyone = self._report(problem, RESUME, k=k, damage=damage, shared=shared)
        found: dict[int, set[int]] = {}
        for one in everyone:
            found.setdefault(one["agent"], set()).add(one["k"])
        for agent, steps in found.items():
            if len(steps) > 1:
                self._fail(
                    f"the processes of agent {agent} found different steps ({sorted(steps)}, -1 is none); give "
                    "them a folder that they share",
                    RESUME,
                )
        latest = max(one["k"] for one in everyone)
        if latest < 0:
            self._report(damage, RESUME)
            return None
        current = self._optimizer.state_dict()
        settings, x, newest = current["param_groups"], None, stored
        if stored is not None:
            x = self._optimizer.estimate_of(stored.part("field/")).to(self._optimizer.estimate())
        if stored is None or k < latest:  # rates and schedules are those of the step that all go on with
            header = next(one["shared"] for one in everyone if one["k"] == latest)
            newest = Stored(self._folder, {}, _without_tensors(header))
        assert newest is not None
        settings = newest.groups if len(newest.header["groups"]) == len(settings) else settings
        self._load_others(newest)
        # A step size that follows a schedule must not take the restored `lr` for a change by the user;
        # loading the settings together with the state as it is takes care of that.
        sent = 0 if stored is None else stored.header["bytes_sent"]
        self._optimizer.load_state_dict(
            {"state": {**current["state"], "k": latest, "bytes_sent": sent}, "param_groups": settings}
        )
        self._optimizer.restart_tracking(x, k=latest)
        if stored is not None:
            self._load_buffers(stored)
            if stored.path.name == self._name:  # two processes with the same random numbers are one too few
                torch.set_rng_state(stored.tensors["rng"])
        return latest

    def _reserve(self) -> None:
        """Keep the folder for this process; raise on every agent if that or the first save is impossible for one."""
        name = f".{self._name.replace('safetensors', 'lock')}"
        problem = reserve(self._folder, name)
        size = sum(value.nbytes for value in self._optimizer.state_fields)
        here = {"size": size, **place_of(self._folder, name)}
        everyone = self._report(problem, "Checkpoints", **here)
        self._report(lack_of_room(self._folder, here, everyone), "Checkpoints")

    def _broken(self) -> str:
        """Return why the state is not worth storing, or nothing."""
        fields = self._optimizer.state_fields._asdict()
        names = [name for name, value in fields.items() if nonfinite_rows(value)]
        if not names:
            return ""
        return f"{', '.join(names)} of the state are not finite; earlier checkpoints are left unchanged"

    def _content(self, passing: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return what the file will hold, without copying the state."""
        here = self._optimizer.state_dict()
        tensors = {f"field/{name}": value for name, value in here["state"]["fields"].items()}
        if "last_grad" in here["state"]:
            tensors["last_grad"] = here["state"]["last_grad"]
        tensors |= passing
        values: dict[str, torch.Tensor] = {}
        header = {
            "format": FORMAT,
            "k": self._optimizer.k,
            "method": here["state"]["method"],
            "bytes_sent": here["state"]["bytes_sent"],
            "model": self._layout(),
            "run": self._run(),
            "links": encode_links(here["state"].get("links", {}), tensors),
            "groups": [
                encode(group, f"param_groups[{i}]", values) for i, group in enumerate(here["param_groups"])
            ],
            "others": {
                name: {
                    "class": _class(other),
                    "state": encode(other.state_dict(), f"others[{name!r}]", values),
                }
                for name, other in self._others.items()
            },
        }
        tensors |= values
        return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}, header

    def _run(self) -> dict[str, Any]:
        """Return what must be the same for an exact resume."""
        return {
            "graph and weights": self._network.network.content_hash[:16],
            "agents": self._network.n,
            "agent": self._network.agent,
            "processes of each agent": self._processes,
            "dtype": str(self._optimizer.estimate().dtype),
            "parameters of each group": [len(group["params"]) for group in self._optimizer.param_groups],
            "links": repr(self._network.network.links),
            "deadline": getattr(self._network, "deadline", None) is not None,
        }

    def _layout(self) -> str:
        """Return a hash of shapes and layouts: equal if the flat rows mean the same."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        layout = [(tuple(p.shape), p.stride()) for p in parameters]
        return hashlib.sha256(repr(layout).encode()).hexdigest()[:16]

    def _passing(self) -> dict[str, torch.Tensor]:
        """Return what every batch changes, by its name in the file."""
        buffers = {f"buffer/{name}": value for name, value in self._buffers().items()}
        return {**buffers, "rng": torch.get_rng_state()}

    def _buffers(self) -> dict[str, torch.Tensor]:
        return {} if self._model is None else dict(self._model.named_buffers())

    def _another_model(self, stored: Stored) -> str:
        """Return why the estimate in the file cannot be used here, or nothing."""
        state, header = self._optimizer.state_dict()["state"], stored.header
        here, there = (state["method"], self._layout()), (header["method"], header["model"])
        if here == there and set(stored.part("field/")) == set(state["fields"]):
            return ""
        return (
            f"`{stored.path.parent}` belongs to another run: {there[0]} and model {there[1]} there, "
            f"{here[0]} and model {here[1]} here; give another folder"
        )

    def _difference(self, stored: Stored) -> str:
        """Return what makes an exact resume impossible, or nothing."""
        pairs = [
            *((name, stored.header["run"].get(name), value) for name, value in self._run().items()),
            (
                "state",
                _shapes(stored.part("field/")),
                _shapes(self._optimizer.state_dict()["state"]["fields"]),
            ),
            ("buffers", _shapes(stored.part("buffer/")), _shapes(self._buffers())),
            (
                "others",
                {name: other["class"] for name, other in stored.header["others"].items()},
                {name: _class(other) for name, other in self._others.items()},
            ),
        ]
        differing = [_contrast(name, there, here) for name, there, here in pairs if there != here]
        if not differing:
            return ""
        return f"`{stored.path.parent}` was stored by another network or program: {'; '.join(differing)}; {TRACKING}"

    def _load_others(self, stored: Stored) -> None:
        """Give every entry the state of the same name and class, if the file has it."""
        problem, found = "", stored.header["others"]
        for name, other in self._others.items():
            if found.get(name, {}).get("class") != _class(other):
                continue
            try:
                other.load_state_dict(decode(found[name]["state"], stored.tensors))
            except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
                problem = f"`{stored.path}`: others[{name!r}] does not accept its state ({error!r})"
        self._report(problem, RESUME)

    def _load_buffers(self, stored: Stored) -> None:
        found = stored.part("buffer/")
        for name, buffer in self._buffers().items():
            if name in found and found[name].shape == buffer.shape:
                buffer.copy_(found[name])

    def _newest(self) -> tuple[Stored | None, str]:
        """Return the newest file of this agent that can be read, and what was wrong with those that cannot."""
        damage = []
        for k in reversed(committed_steps(self._folder)):
            paths = sorted(step_folder(self._folder, k).glob(f"agent-{self._network.agent}[.-]*safetensors"))
            for name in sorted((path.name for path in paths), key=lambda name: name != self._name):
                try:
                    return read_file(self._folder, k, name), ""
                except CheckpointError as error:
                    damage.append(str(error))
        return None, "; ".join(damage)

    def _join_the_other_groups(self) -> None:
        """Find this process among those of its agent; the groups of all of them commit together."""
        # The same accessor as in `process_network`; a store of its own would need a port.
        store = dist.distributed_c10d._get_default_store()
        self._handshake = Coordination(
            store, dist.get_rank(), dist.get_world_size(), f"checkpoints/{next(_instances)}"
        )
        assert isinstance(self._network, ProcessNetwork)
        own = dist.get_process_group_ranks(self._network.group)
        groups = sorted({tuple(one["ranks"]) for one in self._exchange("Checkpoints", ranks=own)})
        sizes = {len(group) for group in groups}
        ranks = sorted(rank for group in groups for rank in group)
        if len(sizes) > 1 or ranks != list(range(dist.get_world_size())):
            self._handshake.leave_together()
            raise ArgumentError(
                f"`optimizer` of Checkpoints: the groups {groups} do not place every one of the {len(ranks)} "
                "processes in one network of equal size; build them with init_device_mesh."
            )
        self._process, self._processes = groups.index(tuple(own)), len(groups)

    def _exchange(self, purpose: str, **facts: Any) -> list[dict[str, Any]]:
        """Return the facts of every process of every agent."""
        facts["agent"] = self._network.agent
        if not isinstance(self._network, ProcessNetwork) or self._handshake is self._network.coordination:
            return self._network.exchange(facts, purpose)
        self._network.coordination.announce(purpose)  # for agents that wait for this one in a step
        return self._handshake.exchange(facts, self._network.timeout, f"{purpose}, by rank")

    def _report(self, problem: str, purpose: str, **facts: Any) -> list[dict[str, Any]]:
        """Return the facts of every process; raise on all of them if one has a problem."""
        everyone = self._exchange(purpose, problem=" ".join(problem.split()), **facts)
        who: dict[str, set[int]] = {}
        for one in everyone:
            who.setdefault(one["problem"], set()).add(one["agent"])
        problems = [
            f"{agents_text(sorted(agents))}: {text}".removeprefix(f"agent {ALL}: ")
            for text, agents in who.items()
            if text
        ]
        if problems:
            self._fail("; ".join(problems), purpose)
        return everyone

    def _fail(self, reason: str, purpose: str) -> NoReturn:
        self._handshake.leave_together()
        raise CheckpointError(f"{purpose}: {reason}.")

    def _prune(self) -> None:
        """Delete this process's files of older steps, and folders that nobody uses any more."""
        for k in committed_steps(self._folder)[: -self._keep]:
            delete_file(step_folder(self._folder, k) / self._name)

    @property
    def _name(self) -> str:
        """The name of this process's file."""
        process = f"-process-{self._process}" if self._process else ""
        return f"agent-{self._network.agent}{process}.safetensors"


def _without_tensors(header: dict[str, Any]) -> dict[str, Any]:
    """Return what one agent's file can tell another in short texts: no settings and entries that hold tensors."""
    texts = {name: json.dumps(other) for name, other in header["others"].items()}
    return {
        "groups": [] if '"tensor"' in json.dumps(header["groups"]) else header["groups"],
        "others": {name: header["others"][name] for name, text in texts.items() if '"tensor"' not in text},
    }


def _class(value: Any) -> str:
    return type(value).__qualname__


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, list[int]]:
    return {name: list(value.shape) for name, value in tensors.items()}


def _contrast(name: str, there: Any, here: Any) -> str:
    """Return the difference between two values in words; of two dictionaries only what differs."""
    if isinstance(there, dict) and isinstance(here, dict):
        keys = [key for key in {**there, **here} if there.get(key) != here.get(key)]
        there, here = ({key: side.get(key, "absent") for key in keys} for side in (there, here))
    return f"{name}: {there} there, {here} here"
