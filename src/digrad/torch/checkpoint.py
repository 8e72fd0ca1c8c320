"""Checkpoints of a network of processes: one file per agent, all at the same step, valid together or not at all.

A step is committed once every agent has written its file: a marker then lists the files with their checksums.
A kill at any moment leaves the previous committed step intact. Files are safetensors; nothing is pickled.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from digrad import checks
from digrad.errors import CheckpointError
from digrad.files import write_atomically
from digrad.torch.optimizer import DecentralizedOptimizer

MARKER = "COMMITTED"
FORMAT = 1


class Stateful(Protocol):
    """Anything with a state of plain numbers and texts, such as a learning-rate scheduler or a GradScaler."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take the state over."""
        ...


class Checkpoints:
    """The checkpoints of one agent's optimizer in a folder, shared between the agents or not.

    Args:
        folder: Holds one folder per step.
        optimizer: Whose state is stored.
        model: Its buffers, such as the statistics of BatchNorm, are stored too.
        others: Schedulers, scalers and the like, by name.
        keep: How many committed steps to keep.
    """

    def __init__(
        self,
        folder: Path | str,
        optimizer: DecentralizedOptimizer,
        *,
        model: torch.nn.Module | None = None,
        others: Mapping[str, Stateful] | None = None,
        keep: int = 3,
    ) -> None:
        self._folder, self._optimizer, self._model = Path(folder), optimizer, model
        self._others = dict(others or {})
        self._keep = checks.count(keep, "keep", "Checkpoints")
        self._network = optimizer.network

    def save(self) -> Path:
        """Write the current step and commit it together with all agents; every agent must call.

        Returns:
            The folder of the step.

        Raises:
            CommunicationError: An agent did not write its file; the step is then not committed.
        """
        k, folder = self._optimizer.k, self._step_folder(self._optimizer.k)
        folder.mkdir(parents=True, exist_ok=True)
        content = save(self._tensors(), {"digrad": json.dumps(self._header())})
        write_atomically(self._file(k), content)
        written = self._network.exchange(
            {"k": k, "sha256": hashlib.sha256(content).hexdigest()}, "checkpoint"
        )
        if any(one["k"] != k for one in written):
            raise CheckpointError(
                f"checkpoint: the agents are at different steps ({[one['k'] for one in written]}); call save at "
                "the same step on all of them."
            )
        marker = {"format": FORMAT, "k": k, "sha256": [one["sha256"] for one in written]}
        write_atomically(folder / MARKER, json.dumps(marker))
        self._network.exchange({"k": k}, "checkpoint")  # nobody deletes before everybody has committed
        self._prune()
        return folder

    def resume(self, mode: Literal["exact", "tracking restart"] = "exact") -> int | None:
        """Go on from the stored state; every agent must call.

        Args:
            mode: ``"exact"``: from the last step that all agents have committed, as if nothing had happened.
                ``"tracking restart"``: keep every agent's estimate and start its trackers anew, for a changed
                graph, a lost file, or steps that differ between agents.

        Returns:
            The step reached, or None if there is no checkpoint.

        Raises:
            CheckpointError: A file is corrupt or of another run; raised on every agent.
        """
        checks.choice(mode, "mode", "Checkpoints.resume", ("exact", "tracking restart"))
        return self._resume_exactly() if mode == "exact" else self._restart_tracking()

    def _resume_exactly(self) -> int | None:
        everyone = self._network.exchange({"steps": self._committed()}, "resume")
        common = set.intersection(*(set(_steps(one)) for one in everyone))
        if not common:
            if any(_steps(one) for one in everyone):
                self._fail("the agents have no committed step in common; use mode='tracking restart'")
            return None
        k = max(common)
        problem, tensors, header = "", {}, {}
        try:
            tensors, header = self._read(k)
        except CheckpointError as error:
            problem = str(error)
        self._report(problem)
        self._restore(tensors, header)
        return k

    def _restart_tracking(self) -> int | None:
        x, k = None, -1
        for step in reversed(self._committed()):
            try:
                tensors, header = self._read(step)
            except CheckpointError:
                continue  # an older file is as good a start as any
            fields = {
                name.removeprefix("field/"): t for name, t in tensors.items() if name.startswith("field/")
            }
            x, k = self._optimizer.estimate_of(fields), header["k"]
            break
        latest = max(_whole(one, "k") for one in self._network.exchange({"k": k}, "resume"))
        if latest < 0:
            return None
        self._optimizer.restart_tracking(x, k=latest)
        return latest

    def _tensors(self) -> dict[str, torch.Tensor]:
        state = self._optimizer.state_dict()["state"]
        tensors = {f"field/{name}": value for name, value in state["fields"].items()}
        if "last_grad" in state:
            tensors["last_grad"] = state["last_grad"]
        if self._model is not None:
            tensors |= {f"buffer/{name}": value for name, value in self._model.named_buffers()}
        tensors["rng"] = torch.get_rng_state()
        return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}

    def _header(self) -> dict[str, Any]:
        stored = self._optimizer.state_dict()
        return {
            "format": FORMAT,
            "k": self._optimizer.k,
            "method": stored["state"]["method"],
            "agent": self._network.agent,
            "graph": self._network.network.content_hash,
            "groups": stored["param_groups"],
            "others": {name: other.state_dict() for name, other in self._others.items()},
        }

    def _restore(self, tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> None:
        fields = {name.removeprefix("field/"): t for name, t in tensors.items() if name.startswith("field/")}
        state = {"k": header["k"], "method": header["method"], "fields": fields}
        if "last_grad" in tensors:
            state["last_grad"] = tensors["last_grad"]
        self._optimizer.load_state_dict({"state": state, "param_groups": header["groups"]})
        for name, buffer in self._model.named_buffers() if self._model is not None else ():
            buffer.copy_(tensors[f"buffer/{name}"])
        for name, other in self._others.items():
            other.load_state_dict(header["others"][name])
        torch.set_rng_state(tensors["rng"])

    def _read(self, k: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        path, marker = self._file(k), json.loads((self._step_folder(k) / MARKER).read_text())
        try:
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() != marker["sha256"][self._network.agent]:
                raise CheckpointError(
                    f"`{path}` is truncated or was changed since it was committed; delete the folder of step {k} "
                    "to go on from an older one."
                )
            tensors = load(content)
            length = int.from_bytes(content[:8], "little")
            header = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["digrad"])
        except (OSError, KeyError, ValueError, IndexError, SafetensorError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"`{path}` cannot be read ({error}).") from error
        self._check(path, header, tensors)
        return tensors, header

    def _check(self, path: Path, header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        here = self._optimizer.state_dict()
        expected = {f"field/{name}": value.shape for name, value in here["state"]["fields"].items()}
        found = {name: value.shape for name, value in tensors.items() if name.startswith("field/")}
        if header["method"] != here["state"]["method"] or expected != found:
            raise CheckpointError(
                f"`{path}` belongs to another run: method {header['method']} with {dict(found)} there, "
                f"{here['state']['method']} with {expected} here; give another folder."
            )

    def _report(self, problem: str) -> None:
        """Raise on every agent if one of them has a problem."""
        everyone = self._network.exchange({"problem": problem}, "resume")
        problems = [
            f"agent {agent}: {one['problem']}" for agent, one in enumerate(everyone) if one["problem"]
        ]
        if problems:
            self._fail("; ".join(problems))

    def _fail(self, reason: str) -> None:
        self._network.handshake.leave_together()
        raise CheckpointError(f"resume: {reason}")

    def _committed(self) -> list[int]:
        """Return the steps that have a marker and this agent's file, ascending."""
        steps = [
            int(path.parent.name.removeprefix("step-")) for path in self._folder.glob(f"step-*/{MARKER}")
        ]
        return sorted(k for k in steps if self._file(k).exists())

    def _prune(self) -> None:
        """Delete this agent's files of older steps, and folders that nobody uses any more."""
        for k in self._committed()[: -self._keep]:
            self._file(k).unlink(missing_ok=True)
            folder = self._step_folder(k)
            if not any(folder.glob("agent-*.safetensors")):
                shutil.rmtree(folder, ignore_errors=True)

    def _step_folder(self, k: int) -> Path:
        return self._folder / f"step-{k:010d}"

    def _file(self, k: int) -> Path:
        return self._step_folder(k) / f"agent-{self._network.agent}.safetensors"


def _steps(one: dict[str, Any]) -> list[int]:
    return list(one["steps"])


def _whole(one: dict[str, Any], name: str) -> int:
    return int(one[name])
