"""The store of the process group where ``digrad launch`` started the agents of several machines.

torch's own store listens on the network and asks nobody for a password. This one asks the launch of its machine over a
Unix socket in a private folder, which asks the supervisor over a sealed connection: an agent itself listens nowhere.
"""

import base64
import json
import os
import socket
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError, Store  # pyright: ignore[reportPrivateImportUsage]

from digrad.torch.machines.meeting import MEETING_VARIABLE

_DEFAULT = timedelta(minutes=5)  # as in torch


class MeetingStore(Store):
    """Keys and values that all agents of an attempt share; see :class:`torch.distributed.Store`."""

    def __init__(self) -> None:
        super().__init__()
        self._path = os.environ[MEETING_VARIABLE]
        self._local = threading.local()  # a thread may wait while another one writes
        self._patience = _DEFAULT

    def facts(self) -> dict[str, Any]:
        """Return what launch tells its agents only: the secret of this attempt, and the address to listen on."""
        return self._ask(op="facts")["facts"]

    def set(self, key: str, value: str | bytes) -> None:
        """Set a value."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._ask(op="set", key=key, value=base64.b64encode(data).decode())

    def get(self, key: str) -> bytes:
        """Return a value; wait for it."""
        self.wait([key])
        return base64.b64decode(self._ask(op="get", key=key)["value"])

    def add(self, key: str, value: int) -> int:
        """Add to a value and return it."""
        return self._ask(op="add", key=key, amount=value)["total"]

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys have values."""
        return self._ask(op="check", keys=list(keys))["found"]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys have values."""
        seconds = (timeout or self._patience).total_seconds()
        answer = self._ask(op="wait", keys=list(keys), seconds=seconds)
        if not answer["ok"]:
            raise DistStoreError(
                f"wait timeout after {1000 * seconds:.0f}ms, keys: {', '.join(answer['missing'])}"
            )

    def delete_key(self, key: str) -> bool:
        """Delete a value; return whether there was one."""
        return self._ask(op="delete", key=key)["found"]

    def num_keys(self) -> int:
        """Return how many keys have values."""
        return self._ask(op="count")["total"]

    def set_timeout(self, timeout: timedelta) -> None:
        """Wait for this long from now on."""
        self._patience = timeout

    # The names under which torch calls them where it holds the store behind a prefix.
    deleteKey, numKeys, setTimeout = delete_key, num_keys, set_timeout  # noqa: N815

    def _ask(self, **request: Any) -> dict[str, Any]:
        try:
            if not hasattr(self._local, "file"):
                connection = socket.socket(socket.AF_UNIX)
                connection.connect(self._path)
                self._local.file = connection.makefile("rwb")
            self._local.file.write(json.dumps(request).encode() + b"\n")
            self._local.file.flush()
            line = self._local.file.readline()
        except OSError as error:
            raise DistStoreError(f"launch has gone ({error})") from error
        if not line:
            raise DistStoreError("launch has gone")
        answer = json.loads(line)
        if not answer["ok"] and "missing" not in answer:
            raise DistStoreError(answer["reason"])
        return answer
