"""What ``digrad launch`` tells of failures: the first cause in full, what followed from it in one line each."""

import signal
import sys
from pathlib import Path
from typing import Any

from digrad.torch.agent_output import AgentOutput
from digrad.torch.failure_records import (
    cause_of,
    read_failures,
    repeated_failure,
    unrecorded_failure,
    without_successes,
)
from digrad.torch.reasons import agents_text

FAILED, BAD_INPUT = 1, 2  # exit codes
_SIGNALLED = 128  # above it, an exit code is a signal


class Story:
    """The failures of one run, told attempt by attempt.

    Args:
        output: Where the agents are heard.
        folder: Where they leave the reasons of their failures.
    """

    def __init__(self, output: AgentOutput, folder: Path) -> None:
        self._output, self._folder = output, folder
        self._told = -1  # the last attempt of which everything is told
        self.is_hopeless = False

    def go_on(self) -> None:
        """Tell the attempts that are over, and find out whether another would end like them."""
        failures = self._failures()
        is_final = any(failure["is_final"] for failure in failures)
        self.is_hopeless = is_final or repeated_failure(failures) is not None
        if not self.is_hopeless and self._output.attempt > self._told + 1:
            over = [one for one in failures if self._told < one["attempt"] < self._output.attempt]
            self._told = self._output.attempt - 1
            if over:
                self._tell(over, "; all agents have been started again")

    def end(self, code: int) -> int:
        """Tell why the run has ended, and return its exit code."""
        failures = self._failures()
        if not self.is_hopeless:  # else another attempt may have begun before torchrun was told
            failures = [failure for failure in failures if failure["attempt"] >= self._output.attempt]
        if code == 0 or not failures:
            self._output.show_torchrun()
            if code > _SIGNALLED:
                name = signal.Signals(code - _SIGNALLED).name
                say(
                    f"torchrun, which starts the agents, was ended by {name}; the same command goes on from the last "
                    "checkpoint"
                )
            return code
        repeated = repeated_failure(self._failures())
        hint = (
            ""
            if repeated is None
            else f"; an earlier attempt failed in the same way {place_of(repeated)}, so it is not tried again"
        )
        cause = self._tell(failures, hint)
        if cause["is_final"]:
            return BAD_INPUT
        return FAILED if self.is_hopeless else code  # that of torchrun says that it was told to end

    def _failures(self) -> list[dict[str, Any]]:
        """Return what the agents have left, and what torchrun knows of those that could not."""
        recorded = read_failures(self._folder)
        known = {(one["agent"], one["attempt"]) for one in recorded}
        blamed = enumerate(self._output.exits())
        unrecorded = [
            unrecorded_failure(agent, code, attempt)
            for attempt, (agent, code) in blamed
            if (agent, attempt) not in known
        ]
        return without_successes(recorded + unrecorded)

    def _tell(self, failures: list[dict[str, Any]], hint: str) -> dict[str, Any]:
        cause = cause_of(failures)
        others = [one for one in failures if one["attempt"] == cause["attempt"] and one is not cause]
        for other in others:
            self._output.show(other["agent"], f"{other['reason']}\n")
        if cause["traceback"]:
            self._output.show(cause["agent"], cause["traceback"])
        reason = (
            cause["reason"].rstrip(".") if hint else cause["reason"]
        )  # the hint goes on with the sentence
        say(f"{agents_text([cause['agent']])} failed: {reason}{hint}")
        return cause


def say(text: str) -> None:
    """Write a line of launch itself."""
    sys.stderr.write(f"digrad: {text}\n")
    sys.stderr.flush()


def place_of(failure: dict[str, Any]) -> str:
    """Return where in the run a failure happened."""
    return "before the first step" if failure["step"] is None else f"at step {failure['step']}"
