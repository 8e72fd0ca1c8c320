"""Files by which ``digrad launch`` and its agents agree to end a run that is told to end, in a private folder."""

import os
from pathlib import Path

GRACE = 25.0  # seconds that agents get to save and end; what tells launch to end often kills it after thirty
_ASKED, _ABLE = "end", "can-end"  # the second name is followed by the number of the agent

_folder: list[Path] = []  # in an agent


def remember_folder(folder: Path) -> None:
    """Let the functions below know the folder of the launch that has started this agent."""
    _folder[:] = [folder]


def can_end() -> None:
    """Say that this agent saves and ends when it is asked to."""
    if _folder:
        (_folder[0] / f"{_ABLE}-{os.environ['RANK']}").touch()


def is_asked_to_end() -> bool:
    """Return whether launch asks this agent to save and end."""
    return bool(_folder) and (_folder[0] / _ASKED).exists()


def ask_to_end(folder: Path, agents: int) -> bool:
    """Ask the agents of a launch to save and end; return whether all of them will."""
    if len(list(folder.glob(f"{_ABLE}-*"))) < agents:
        return False
    (folder / _ASKED).touch()
    return True
