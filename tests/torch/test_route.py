"""How long a message is waited for."""

import time
from datetime import timedelta

from digrad.torch.route import Route


class Slow:
    """A message that moves for a while, and arrives or not."""

    def __init__(self, seconds: float, *, arrives: bool) -> None:
        self._end, self._arrives = time.monotonic() + seconds, arrives

    @property
    def last_progress(self) -> float:
        return min(time.monotonic(), self._end)

    def wait(self, timeout: timedelta) -> bool:
        left = self._end - time.monotonic()
        time.sleep(max(min(timeout.total_seconds(), left if self._arrives else 9.9), 0.0))
        return self._arrives and time.monotonic() >= self._end


class Told:
    """A carrier that counts how often others are told that this agent still waits."""

    count = 0

    def keep_waiting(self) -> None:
        self.count += 1


def test_message_that_makes_progress_is_waited_for_beyond_the_timeout_and_others_are_told() -> None:
    carrier = Told()
    route = Route(None, [carrier])  # pyright: ignore
    assert route.wait(Slow(0.5, arrives=True), time.monotonic() + 0.1, 0.1)
    assert carrier.count >= 4


def test_message_that_stops_moving_is_given_up_after_the_timeout() -> None:
    began = time.monotonic()
    assert not Route(None, []).wait(Slow(0.2, arrives=False), began + 0.1, 0.1)
    assert 0.3 <= time.monotonic() - began < 2.0
