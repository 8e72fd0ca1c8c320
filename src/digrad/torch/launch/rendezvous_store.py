"""The key-value store of a round, through which its workers find one another: a torch ``Store`` over ZeroMQ.

torch's own store listens on the network and asks nobody for a password. Here one process of the run, that of the
machine with the endpoint, keeps the values; requests and answers are JSON, encrypted and authenticated by CURVE.
"""

import base64
import contextlib
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import (
    DistStoreError,
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    Store,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)

from digrad.torch.launch import STORE_VARIABLE, attempt
from digrad.torch.launch.rendezvous_endpoint import Client, EndpointLostError, Message
from digrad.torch.transport.addresses import is_address, listening_socket
from digrad.torch.transport.curve_keys import KEY_VARIABLE, read_key

_SLICE = 5.0  # seconds of one request to wait for keys

SHARED_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # what torchrun tells the agents it has done
SAVED = "digrad saved"  # key: all agents have agreed to end, because one of them was asked to

_kept: list[Store] = []  # torch itself holds only the half of a store that is not Python's


class RendezvousStore(Store):
    """Keys and values that all workers of a round share; see :class:`torch.distributed.Store`.

    Args:
        client: Reaches the endpoint.
        number: Of the round; the store is empty when it begins, and gone when it ends.
    """

    def __init__(self, client: Client, number: int) -> None:
        super().__init__()
        self._client, self._round = client, number

    def set(self, key: str, value: str | bytes) -> None:
        """Set a value."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._ask(op="set", key=key, value=base64.b64encode(data).decode())

    def get(self, key: str) -> bytes:
        """Return a value; wait for it."""
        while True:
            self.wait([key])
            value = self._ask(op="get", key=key)["value"]
            if value is not None:  # else it was deleted meanwhile
                return base64.b64decode(value)

    def add(self, key: str, value: int) -> int:
        """Add to a value and return it."""
        return self._ask(op="add", key=key, amount=value)["total"]

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys have values."""
        return self._ask(op="check", keys=list(keys))["found"]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys have values."""
        seconds = (timeout or self.timeout).total_seconds()  # pyright: ignore[reportAttributeAccessIssue]
        deadline = time.monotonic() + seconds
        while missing := self._wait(list(keys), deadline - time.monotonic()):
            if time.monotonic() >= deadline:
                raise DistStoreError(f"wait timeout after {1000 * seconds:.0f}ms, keys: {', '.join(missing)}")

    def delete_key(self, key: str) -> bool:
        """Delete a value; return whether there was one."""
        return self._ask(op="delete", key=key)["found"]

    def num_keys(self) -> int:
        """Return how many keys have values."""
        return self._ask(op="count")["total"]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Set several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return several values; wait for them."""
        return [self.get(key) for key in keys]

    # The names under which torch calls them where it holds the store behind a prefix.
    deleteKey, getNumKeys = delete_key, num_keys  # noqa: N815

    def _wait(self, keys: list[str], seconds: float) -> list[str]:
        """Wait for a while; return the keys that have no values yet."""
        return self._ask(op="wait", keys=keys, seconds=max(min(seconds, _SLICE), 0.0)).get("missing", [])

    def _ask(self, **request: Any) -> Message:
        try:
            answer = self._client.ask(**request, round=self._round)
        except EndpointLostError as error:
            raise DistStoreError(f"lost the machine with the endpoint ({error})") from error
        if answer.get("over"):
            raise DistStoreError("this attempt is over: another one begins")
        return answer


def store_from_environment(timeout: float) -> Store | None:
    """Return the store through which the workers of this attempt meet; the environment names it.

    None leaves it to torch: the environment gives a name, which may not be the address by which others reach this host.

    Args:
        timeout: Seconds to wait for whoever has it.
    """
    if STORE_VARIABLE in os.environ:
        key_file = os.environ.get(KEY_VARIABLE)
        keys = None if key_file is None else read_key(key_file)
        _kept.append(RendezvousStore(Client(os.environ[STORE_VARIABLE], keys), attempt()))
        return _kept[-1]
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    size, waits = int(os.environ["WORLD_SIZE"]), timedelta(seconds=timeout)
    if os.environ.get(SHARED_STORE) == "True":
        # That of torchrun, which may outlive an attempt: the next one must not find the addresses of this one.
        store = TCPStore(host, port, size, is_master=False, timeout=waits, wait_for_workers=False)
        return PrefixStore(f"digrad attempt {attempt()}", store)
    if not is_address(host):
        return None
    if os.environ["RANK"] != "0":
        return TCPStore(host, port, size, is_master=False, timeout=waits, wait_for_workers=False)
    with contextlib.suppress(OSError):  # behind a translated address, which only others can use
        # On this address only: left alone, torch listens on all interfaces, whatever address it is given.
        listener = listening_socket(host, port)
        return TCPStore(
            host,
            port,
            size,
            is_master=True,
            timeout=waits,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
    return None


def note_preempted() -> None:
    """Let launch know, on every machine, that the agents end because the run is preempted."""
    for store in _kept:
        store.set(SAVED, "")


class Table:
    """The values of one round, kept by the machine with the endpoint.

    >>> table = Table()
    >>> table.answer({"id": 1, "op": "set", "key": "a", "value": "Yg=="}), table.answer({"op": "get", "key": "a"})
    ({}, {'value': 'Yg=='})
    >>> table.answer({"id": 2, "op": "add", "key": "n", "amount": 3}), table.answer({"op": "wait", "keys": ["a", "b"]})
    ({'total': 3}, {'missing': ['b']})
    """

    def __init__(self) -> None:
        self._values: dict[str, str] = {}  # in base64, as they travel
        self._totals: dict[str, int] = {}  # by request: one that is repeated is not added twice

    def answer(self, request: Message) -> Message:
        """Return what a request asks for."""
        match request["op"]:
            case "set":
                self._values[request["key"]] = request["value"]
                return {}
            case "get":
                return {"value": self._values.get(request["key"])}
            case "add":
                return {"total": self._add(request)}
            case "check":
                return {"found": not self.missing(request["keys"])}
            case "wait":
                return {"missing": self.missing(request["keys"])}
            case "delete":
                return {"found": self._values.pop(request["key"], None) is not None}
            case _:
                return {"total": len(self._values)}

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Return the keys that have no values."""
        return [key for key in keys if key not in self._values]

    def _add(self, request: Message) -> int:
        if request["id"] not in self._totals:
            before = base64.b64decode(self._values.get(request["key"], "MA=="))  # the figure 0
            self._totals[request["id"]] = total = int(before) + request["amount"]
            self._values[request["key"]] = base64.b64encode(str(total).encode()).decode()
        return self._totals[request["id"]]
