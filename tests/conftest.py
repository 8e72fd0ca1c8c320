import importlib.util
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import pytest
from hypothesis import settings

from digrad._internal.compilation import keep_compiled

# All test processes, those that tests start too, share what JAX compiles, and so does the next run of the suite.
keep_compiled()

# Property tests try the same examples in every run, however slow the machine;
# `make slow` explores with `--hypothesis-profile=default`.
settings.register_profile("gate", derandomize=True, deadline=None)
settings.load_profile("gate")

TESTS = Path(__file__).parent
IMPORTS_TORCH = re.compile(r"^(?:import|from) (?:digrad\.)?(?:torch|image_problems)", re.MULTILINE)


class Helpers:
    """Finds the modules that tests share, but not the folder ``tests/torch`` under the name of a missing torch."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return where a module of this folder is."""
        return None if path or name == "torch" else PathFinder.find_spec(name, [str(TESTS)])


def has_torch() -> bool:
    """Tell whether torch itself is installed; a mere folder of that name has no origin."""
    found = importlib.util.find_spec("torch")
    return found is not None and found.origin is not None


if not has_torch():
    sys.path[:] = [entry for entry in sys.path if entry != str(TESTS)]
    sys.meta_path.append(Helpers)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the files that import torch where there is none: `make test-all`."""
    if collection_path.suffix != ".py" or has_torch():
        return None
    return True if IMPORTS_TORCH.search(collection_path.read_text(encoding="utf-8")) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files, so that at the end no process works alone.

    Examples of methods compile a loop each: those of one method of each kind run, the others in `make slow`.
    """
    from digrad.methods import METHODS
    from method_cases import KINDS

    for item in items:
        module, _, name = item.name.rpartition(".")
        if module.startswith("digrad.methods.") and name in METHODS and name not in KINDS:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


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


def _touch(figure: object, path: Path, *, formats: Iterable[str] = ("png", "pdf")) -> list[Path]:
    files = [Path(f"{path}.{kind}") for kind in formats]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return files


@pytest.fixture(scope="module")
def empty_figures() -> Iterator[None]:
    """Figures of runs and commands are made, but their files stay empty: to draw them takes longer than most runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("digrad.plots.save_figure", _touch)
        yield


@pytest.fixture(scope="module")
def no_figures(empty_figures: None) -> Iterator[None]:
    """The same, and runs do not even make them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("digrad.specs.runner.draw_figures", lambda *_: [])
        yield


@pytest.fixture
def no_figures_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in one test."""
    monkeypatch.setattr("digrad.plots.save_figure", _touch)
    monkeypatch.setattr("digrad.specs.runner.draw_figures", lambda *_: [])


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


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Background jobs of a shell ignore Ctrl-C from the start; a terminal's do not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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


@pytest.fixture
def chunks_of(monkeypatch):
    """Return a function that sets how many steps each call of the loop takes in runs from now on."""
    simulate, simulator = (import_module(f"digrad.simulation.{name}") for name in ("simulate", "simulator"))

    def set_length(steps):
        monkeypatch.setattr(simulator, "STEPS_PER_CALL", steps)
        monkeypatch.setattr(simulator, "LEAST_STEPS", 1)
        monkeypatch.setattr(simulate, "CALL_SECONDS", None)

    return set_length
