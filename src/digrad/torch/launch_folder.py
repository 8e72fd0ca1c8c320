"""Files by which ``digrad launch`` and its agents agree to end a run that is told to end, in a private folder."""

from pathlib import Path

GRACE = 25.0  # seconds that agents get to save and end; what tells launch to end often kills it after thirty
_ASKED, _ABLE = "end", "can-end"  # the second name is followed by the number of the agent

_launch: list[tuple[Path, int]] = []  # in an agent


def remember_launch(folder: Path, agent: int) -> None:
    """Let the functions below know the folder of the launch that has started this agent, and its number.

    Not from the environment: scripts take the rank out of it, to keep other libraries from using it.
    """
    _launch[:] = [(folder, agent)]


def can_end() -> None:
    """Say that this agent saves and ends when it is asked to."""
    for folder, agent in _launch:
        (folder / f"{_ABLE}-{agent}").touch()


def is_asked_to_end() -> bool:
    """Return whether launch asks this agent to save and end."""
    return any((folder / _ASKED).exists() for folder, _ in _launch)


def ask_to_end(folder: Path, agents: int) -> bool:
    """Ask the agents of a launch to save and end; return whether all of them will."""
    if len(list(folder.glob(f"{_ABLE}-*"))) < agents:
        return False
    (folder / _ASKED).touch()
    return True
