"""The agent and the step in every record of :mod:`logging`, so that a format can show them."""

import logging
from typing import Any

_place = {"agent": 0, "step": 0}  # of this process


def note_agent(agent: int) -> None:
    """Let all records from now on say which agent made them, and at which step."""
    _place["agent"] = agent
    make = logging.getLogRecordFactory()
    if getattr(make, "knows_the_step", False):
        return

    def make_with_place(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        record.__dict__.update(_place)
        return record

    make_with_place.knows_the_step = True  # pyright: ignore[reportFunctionMemberAccess]
    logging.setLogRecordFactory(make_with_place)


def note_step(k: int) -> None:
    """Remember the step that this agent has reached."""
    _place["step"] = k
