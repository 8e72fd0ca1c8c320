"""The files of a checkpoint: a folder per step, a file per process, a marker once all of them are complete."""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from digrad.errors import CheckpointError
from digrad.torch.checkpoint.serialization import decode

MARKER = "COMMITTED"
FORMAT = 3

_PATIENCE = 10.0  # seconds for a process that was just ended to let its files go
_reserved: dict[Path, int] = {}  # lock files that this process holds until it ends, by path

_STEP = re.compile(r"step-([0-9]{10})")


class Stored(NamedTuple):
    """Contents of one file."""

    path: Path
    tensors: dict[str, torch.Tensor]
    header: dict[str, Any]

    def part(self, prefix: str) -> dict[str, torch.Tensor]:
        """Return the tensors whose names begin with ``prefix``, which is left out."""
        return {
            name.removeprefix(prefix): value
            for name, value in self.tensors.items()
            if name.startswith(prefix)
        }

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The settings of the parameter groups."""
        return [decode(group, self.tensors) for group in self.header["groups"]]


def reserve(folder: Path, name: str) -> str:
    """Keep other processes from using the files of this one in ``folder``, until it ends, however it does.

    Args:
        folder: Is made if it is missing.
        name: Of the lock file.

    Returns:
        Why it cannot be used, or nothing.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder.resolve() / name
        if path not in _reserved:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            if not _lock(descriptor):
                os.close(descriptor)
                return f"another run uses `{folder}` (`{name}` is locked); end it, or give another folder"
            _reserved[path] = descriptor
            os.ftruncate(descriptor, 0)
            # By this others see that they share the folder.
            os.write(descriptor, secrets.token_hex(16).encode())
    except OSError as error:
        return f"`{folder}` cannot be written ({error}); give another folder"
    return ""


def place_of(folder: Path, name: str) -> dict[str, Any]:
    """Return what tells others whether they share the disk or the folder of this process, which has reserved it."""
    with contextlib.suppress(OSError):  # it is reported why it could not be reserved
        return {
            "disk": [_machine(), os.stat(folder).st_dev],
            "lock": name,
            "token": (folder / name).read_text(),
        }
    return {}


def lack_of_room(folder: Path, here: dict[str, Any], everyone: Sequence[dict[str, Any]]) -> str:
    """Return that a disk has no room for the first states of all processes that share it, or nothing.

    Args:
        folder: Of this process.
        here: Its own entry.
        everyone: For every process its :func:`place_of`, and the bytes of its state as ``size``.
    """
    sizes = [one["size"] for one in everyone if one["disk"] == here["disk"] or _is_in(folder, one)]
    free, size = shutil.disk_usage(folder).free, sum(sizes)
    if free >= size:
        return ""
    what = "one state needs" if len(sizes) == 1 else f"the states of {len(sizes)} processes on that disk need"
    return f"`{folder}` has {free / 1e6:.0f} MB left, but {what} {size / 1e6:.0f} MB; make room"


def _is_in(folder: Path, other: dict[str, Any]) -> bool:
    """Return whether another process, perhaps of another machine, has reserved this very folder too."""
    with contextlib.suppress(OSError):
        return (folder / other["lock"]).read_text() == other["token"]
    return False


def _machine() -> str:
    """Return what differs between machines."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return platform.node()


def _lock(descriptor: int) -> bool:
    """Return whether a file could be locked; where locks are unknown it counts as locked."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        except OSError:  # a file system without locks
            return True


def step_folder(folder: Path, k: int) -> Path:
    """Return the folder of one step."""
    return folder / f"step-{k:010d}"


def committed_steps(folder: Path) -> list[int]:
    """Return the steps that have a marker, ascending."""
    found = (_STEP.fullmatch(path.parent.name) for path in folder.glob(f"step-*/{MARKER}"))
    return sorted(int(match[1]) for match in found if match)


def write_file(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> str:
    """Write a file in one step, straight from the memory of the tensors; return its checksum.

    The rename becomes durable with the marker, whose write forces the same folder to the disk.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        save_file(tensors, temporary, metadata)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        digest = _digest(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return digest


def delete_file(path: Path) -> None:
    """Delete a file, and the folder of its step after the last one; other processes are doing the same."""
    path.unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        if not any(entry.match("agent-*.safetensors") for entry in path.parent.iterdir()):
            shutil.rmtree(path.parent, ignore_errors=True)


class OtherFormatError(CheckpointError):
    """A checkpoint that another version of digrad has stored."""


def read_file(folder: Path, k: int, name: str) -> Stored:
    """Return what a file of a committed step holds.

    Raises:
        OtherFormatError: Another version of digrad has stored it.
        CheckpointError: The marker or the file is damaged.
    """
    path = step_folder(folder, k) / name
    marker = path.parent / MARKER
    try:
        committed = json.loads(marker.read_text())
        if committed["format"] != FORMAT:
            raise OtherFormatError(
                f"`{marker}` has format {committed['format']}, but this version reads {FORMAT}; resume with the "
                "version of digrad that stored it, or use another folder"
            )
        digest = committed["sha256"].get(name)
    except (OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"`{marker}` is damaged ({error!r})") from error
    try:
        if _digest(path) != digest:
            raise CheckpointError(f"`{path}` is truncated or was changed since it was committed")
    except OSError as error:
        raise CheckpointError(f"`{path}` cannot be read ({error!r})") from error
    tensors, header = read_tensors(path)
    if header.get("k") != k:
        raise CheckpointError(f"`{path}` holds step {header.get('k')}")
    return Stored(path, tensors, header)


def read_tensors(path: Path, remedy: str = "") -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the tensors and the header of a file of :func:`write_file`.

    Args:
        path: The file.
        remedy: Ends the message about a damaged one.

    Raises:
        CheckpointError: It is damaged.
    """
    try:
        with safe_open(path, "pt") as file:
            header = json.loads(file.metadata()["digrad"])
        return load_file(path), header
    except (OSError, KeyError, ValueError, TypeError, SafetensorError) as error:
        raise CheckpointError(f"`{path}` cannot be read ({error!r}){remedy}") from error


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
