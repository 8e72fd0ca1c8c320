"""The file with the secret that machines share."""

import os
from pathlib import Path
from typing import Any

import pytest

from digrad.errors import StorageError
from digrad.torch.machines.key_file import make_key, read_key


def test_full_disk_leaves_no_half_of_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, mode: str) -> Any:
        os.close(descriptor)
        return open("/dev/full", mode)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdopen", full)
        with pytest.raises(StorageError, match="No space left on device"):
            make_key(tmp_path / "run.key")
    assert len(read_key(make_key(tmp_path / "run.key"))) == 32
