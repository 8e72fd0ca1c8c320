"""Checkpoints of a run: written atomically, refused with a reason when corrupt or foreign.

One file holds the state, what has been recorded, and a fingerprint of everything that determines the numbers.
It is a NumPy archive without pickle, whose members carry checksums.
"""

import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from digrad import checks
from digrad.errors import CheckpointError
from digrad.files import write_atomically

FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often a run stores what it needs to go on.

    Args:
        path: The file.
        every: Steps between two writes.
        resume: Go on from the file if it is there; otherwise it is overwritten.
    """

    path: Path | str
    every: int = 1000
    resume: bool = False

    def __post_init__(self) -> None:
        """Check the fields."""
        checks.count(self.every, "every", "Checkpoint")


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
    differing = sorted(
        key
        for key in {*fingerprint, *header["fingerprint"]}
        if _at(fingerprint, key) != _at(header["fingerprint"], key)
    )
    if differing:
        listed = "; ".join(
            f"{key}: {_at(header['fingerprint'], key)} there, {_at(fingerprint, key)} here"
            for key in differing
        )
        raise CheckpointError(
            f"`{path}` belongs to another run ({listed}); give another folder, or run without --resume."
        )
    leaves, structure = jax.tree.flatten(state)
    stored = [arrays.get(f"state/{i}") for i in range(len(leaves))]
    if any(old is None or old.shape != new.shape for old, new in zip(stored, leaves, strict=True)):
        raise CheckpointError(
            f"`{path}` does not hold a state of this method; delete it, or run without --resume."
        )
    columns = {
        name.removeprefix("column/"): array for name, array in arrays.items() if name.startswith("column/")
    }
    return header["k"], jax.tree.unflatten(structure, stored), columns, header["seconds"]


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(str(arrays.pop("header")))
        k, seconds, stored = int(header["k"]), float(header["seconds"]), dict(header["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            f"`{path}` is not a readable checkpoint ({error}); delete it, or run without --resume."
        ) from error
    if header.get("format") != FORMAT:
        raise CheckpointError(
            f"`{path}` has format {header.get('format')}, but this version reads {FORMAT}; "
            "run without --resume."
        )
    return {"k": k, "seconds": seconds, "fingerprint": stored}, arrays


def _at(fingerprint: dict[str, Any], key: str) -> Any:
    return fingerprint.get(key, "(absent)")
