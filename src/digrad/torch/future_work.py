"""A message under way as a future, with the interface of a torch ``Work``."""

from concurrent.futures import Future
from datetime import timedelta


class FutureWork:
    """What becomes of a message: :attr:`future` ends when it has arrived or left, or never will."""

    def __init__(self) -> None:
        self.future: Future[None] = Future()

    def wait(self, timeout: timedelta) -> bool:
        """Wait until it has arrived or left; return whether it has."""
        try:
            self.future.result(timeout.total_seconds())
        except TimeoutError:
            return False
        return True

    def is_completed(self) -> bool:
        """Return whether it has arrived or left, or never will."""
        return self.future.done()
