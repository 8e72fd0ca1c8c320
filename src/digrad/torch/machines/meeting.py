"""The table of keys and values through which the agents of one attempt meet, kept by the supervisor."""

import base64
import threading
import time
from typing import Any

from digrad.torch.machines.channel import Message

MEETING_VARIABLE = "DIGRAD_MEETING"  # where agents find the socket at which launch answers for the table


class Meeting:
    """Values by key; threads may wait for keys.

    >>> meeting = Meeting()
    >>> meeting.answer({"op": "set", "key": "a", "value": "Yg=="}), meeting.answer({"op": "get", "key": "a"})
    ({'ok': True}, {'ok': True, 'value': 'Yg=='})
    >>> meeting.answer({"op": "wait", "keys": ["a", "b"], "seconds": 0.0})
    {'ok': False, 'missing': ['b']}
    """

    def __init__(self) -> None:
        self._values: dict[str, str] = {}  # in base64, as they travel
        self._changed = threading.Condition()
        self._is_over = False

    def end(self) -> None:
        """Let everybody who waits give up."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def answer(self, request: Message) -> Message:
        """Return what a request of an agent asks for; ``wait`` may take its time."""
        operation = {
            "set": self._set,
            "get": self._get,
            "add": self._add,
            "check": self._check,
            "wait": self._wait,
            "delete": self._delete,
            "count": self._count,
        }[request["op"]]
        return {"ok": True} | operation(request)

    def _set(self, request: Message) -> Message:
        with self._changed:
            self._values[request["key"]] = request["value"]
            self._changed.notify_all()
        return {}

    def _get(self, request: Message) -> Message:
        with self._changed:
            value = self._values.get(request["key"])
        return {"ok": False, "missing": [request["key"]]} if value is None else {"value": value}

    def _add(self, request: Message) -> Message:
        with self._changed:
            before = base64.b64decode(self._values.get(request["key"], "MA=="))  # the figure 0
            total = int(before) + request["amount"]
            self._values[request["key"]] = base64.b64encode(str(total).encode()).decode()
            self._changed.notify_all()
        return {"total": total}

    def _check(self, request: Message) -> Message:
        with self._changed:
            return {"found": all(key in self._values for key in request["keys"])}

    def _wait(self, request: Message) -> Message:
        deadline = time.monotonic() + request["seconds"]
        with self._changed:
            while missing := [key for key in request["keys"] if key not in self._values]:
                if self._is_over or not self._changed.wait(deadline - time.monotonic()):
                    return {"ok": False, "missing": missing}
        return {}

    def _delete(self, request: Message) -> Message:
        with self._changed:
            return {"found": self._values.pop(request["key"], None) is not None}

    def _count(self, request: Message) -> dict[str, Any]:
        with self._changed:
            return {"total": len(self._values)}
