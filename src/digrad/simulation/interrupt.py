"""Ctrl-C during a run: noted, and acted on between chunks, where the state is whole."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Within the block the first Ctrl-C only sets a flag, which the yielded function reads; a second one raises.

    Python may deliver an interrupt inside a callback of JAX, where it is lost with a traceback; a flag is not. Signals
    reach the main thread only, so elsewhere nothing changes.
    """
    pressed = False

    def note(number: int, frame: Any) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
