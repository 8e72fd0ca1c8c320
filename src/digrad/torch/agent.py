"""One agent as ``digrad launch`` starts it: ``python -m digrad.torch.agent SCRIPT ARGUMENTS``.

Its output and the reason of its failure go to launch, also if it fails before it has constructed anything.
"""

import os
import runpy
import sys
from pathlib import Path

from digrad.torch.agent_output import hand_over_output
from digrad.torch.failure_records import FAILURES_VARIABLE, record_end, record_failure
from digrad.torch.launch_folder import remember_launch
from digrad.torch.tied import end_with_parent

_TOLD = range(129, 256)  # exit codes: somebody has told the agent to end


def main() -> None:
    """Run the script of the command line as Python itself would."""
    end_with_parent()
    # Taken out, so that processes started by the script do not report as the agent.
    folder = Path(os.environ.pop(FAILURES_VARIABLE))
    # Read now: scripts take them out, to keep other libraries from using them.
    agent, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    hand_over_output(folder, agent, attempt)
    remember_launch(folder, agent)
    # Imports torch, which takes seconds: not before launch may be killed without leaving this process behind.
    from digrad.torch.bound_store import keep_to_loopback

    keep_to_loopback()
    del sys.argv[0]
    script = sys.argv[0]
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
        record_end(folder, agent, attempt)
    except SystemExit as error:
        if error.code in (None, 0):
            record_end(folder, agent, attempt)
        elif error.code not in _TOLD:
            record_failure(folder, agent, attempt, error, script)
        raise
    except Exception as error:
        record_failure(folder, agent, attempt, error, script)
        # Not sys.exit: Python keeps the frames of an uncaught error to the end, and without them torch would wait for
        # the messages under way as it drops the group.
        sys.excepthook = lambda *_: None
        raise


if __name__ == "__main__":
    main()
