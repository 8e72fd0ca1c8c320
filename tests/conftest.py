import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

# Property tests try the same examples in every run; `make slow` explores with `--hypothesis-profile=default`.
settings.register_profile("gate", derandomize=True)
settings.load_profile("gate")


@pytest.fixture(scope="session")
def a9a_folder() -> Path:
    """The folder of DIGRAD_DATA if it holds a9a; else the test is skipped, or fails when a9a is required."""
    setting = os.environ.get("DIGRAD_DATA")
    names = ("a9a", "a9a.bz2", "a9a.gz", "a9a.txt")
    if setting and any(Path(setting, name).is_file() for name in names):
        return Path(setting)
    reason = "set DIGRAD_DATA to a folder with a9a"
    if os.environ.get("DIGRAD_REQUIRE_A9A") == "1":
        pytest.fail(f"DIGRAD_REQUIRE_A9A=1: {reason}")
    pytest.skip(reason)


@pytest.fixture
def full_disk() -> Callable[..., AbstractContextManager[None]]:
    """A block in which the kernel refuses to write more than ``after`` bytes to a file, as a full disk does."""

    @contextmanager
    def limited(*, after: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (after, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited


@pytest.fixture(scope="session")
def cifar10_folder() -> Path:
    """The folder with CIFAR-10, if it is on this machine; else the test is skipped, or fails when it is required."""
    from digrad.data.cifar import find_cifar10
    from digrad.errors import DataError

    try:
        return find_cifar10()
    except DataError as error:
        if os.environ.get("DIGRAD_REQUIRE_CIFAR10") == "1":
            pytest.fail(f"DIGRAD_REQUIRE_CIFAR10=1: {error}")
        pytest.skip(str(error))
