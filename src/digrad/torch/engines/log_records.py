"""Agent and step of this process, for the records of :mod:`logging` and of failures."""

import logging
from typing import Any

_place: dict[str, int] = {}


def note_agent(agent: int) -> None:
    """Let all records of logging from now on say which agent made them, and at which step."""
    _place["agent"] = agent
    make = logging.getLogRecordFactory()
    if getattr(make, "knows_the_step", False):
        return

    def make_with_place(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        record.__dict__.update({"step": 0, **_place})
        return record

    make_with_place.knows_the_step = True  # pyright: ignore[reportFunctionMemberAccess]
    logging.setLogRecordFactory(make_with_place)


def note_step(k: int) -> None:
    """Remember the step that this agent has reached."""
    _place["step"] = k


def step_reached() -> int | None:
    """Return the step that this agent has reached, once there is one."""
    return _place.get("step")
