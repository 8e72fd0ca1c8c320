"""Checkpoints of a run: written atomically, refused with a reason when corrupt or foreign.

One file holds the state, what has been recorded, and a fingerprint of everything that determines the numbers.
It is a NumPy archive without pickle, whose members carry checksums.
"""

import errno
import io
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from digrad import checks
from digrad._internal.files import locked_file, make_folder, write_atomically
from digrad.errors import ArgumentError, CheckpointError, StorageError

FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """File in which a run is stored so that it can be resumed.

    Args:
        path: The file.
        every: Steps between two writes.
        resume: Continue from the file if it exists; more ``steps`` then extend a run that has ended.
        overwrite: Start over even if the file exists; without either, an existing file is refused.
    """

    path: Path | str
    every: int = 1000
    resume: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Check the fields."""
        if not isinstance(self.path, str | os.PathLike):
            raise ArgumentError(f"`path` of Checkpoint must be the path of a file, but got {self.path!r}.")
        checks.count(self.every, "every", "Checkpoint")
        if self.resume and self.overwrite:
            raise ArgumentError(
                "`resume` and `overwrite` of Checkpoint exclude each other; give one of the two."
            )


@contextmanager
def held(checkpoint: Checkpoint) -> Iterator[bool]:
    """Keep the file from other processes, and say whether there is a run to go on with.

    Raises:
        ArgumentError: The path is a folder, another process stores its run there, or a run is there and neither
            ``resume`` nor ``overwrite`` is given.
        StorageError: Nothing can be written there.
    """
    path = Path(checkpoint.path)
    if path.is_dir():
        raise ArgumentError(f"`path` of Checkpoint must be a file, but {path} is a folder.")
    make_folder(path.parent)
    if not os.access(path.parent, os.W_OK):
        raise StorageError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    with locked_file(path):
        if path.exists() and not (checkpoint.resume or checkpoint.overwrite):
            raise ArgumentError(
                f"`path` of Checkpoint: {path} exists already; continue with resume=True, start over with "
                "overwrite=True, or give another path."
            )
        yield checkpoint.resume and path.exists()


def save(
    path: Path | str,
    *,
    k: int,
    state: Any,
    columns: dict[str, Any],
    seconds: float,
    fingerprint: dict[str, Any],
) -> None:
    """Write a checkpoint; a kill at any moment leaves the old file or the new one."""
    leaves = {f"state/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
    header = json.dumps({"format": FORMAT, "k": k, "seconds": seconds, "fingerprint": fingerprint})
    buffer = io.BytesIO()
    np.savez(
        buffer,
        header=np.array(header),
        **leaves,
        **{f"column/{name}": column for name, column in columns.items()},
    )
    write_atomically(Path(path), buffer.getvalue())


def load(
    path: Path | str, *, state: Any, fingerprint: dict[str, Any]
) -> tuple[int, Any, dict[str, Any], float]:
    """Return k, the state, the recorded columns and the seconds spent.

    Args:
        path: The file.
        state: A state of the same method, as the template.
        fingerprint: Of the run that wants to go on.

    Raises:
        CheckpointError: the file is corrupt, or belongs to another run.
    """
    header, arrays = _read(Path(path))
    differing = difference(header["fingerprint"], fingerprint)
    if differing:
        raise CheckpointError(
            f"`{path}` belongs to another run ({differing}); give another place, or start over with overwrite."
        )
    leaves, structure = jax.tree.flatten(state)
    stored = [arrays.get(f"state/{i}") for i in range(len(leaves))]
    if any(old is None or old.shape != new.shape for old, new in zip(stored, leaves, strict=True)):
        raise CheckpointError(
            f"`{path}` does not hold a state of this method; delete it, or start over with overwrite."
        )
    columns = {
        name.removeprefix("column/"): array for name, array in arrays.items() if name.startswith("column/")
    }
    return header["k"], jax.tree.unflatten(structure, stored), columns, header["seconds"]


def difference(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return in which facts two runs differ, of many the first three; empty if in none."""
    absent = "(absent)"
    pairs = {key: (stored.get(key, absent), wanted.get(key, absent)) for key in sorted({*stored, *wanted})}
    found = [f"{key}: {there} there, {here} here" for key, (there, here) in pairs.items() if there != here]
    return "; ".join([*found[:3], *([f"and {len(found) - 3} more"] if len(found) > 3 else [])])


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(str(arrays.pop("header")))
        k, seconds, stored = int(header["k"]), float(header["seconds"]), dict(header["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            f"`{path}` is not a readable checkpoint ({error}); delete it, or start over with overwrite."
        ) from error
    if header.get("format") != FORMAT:
        raise CheckpointError(
            f"`{path}` has format {header.get('format')}, but this version reads {FORMAT}; "
            "start over with overwrite."
        )
    return {"k": k, "seconds": seconds, "fingerprint": stored}, arrays
