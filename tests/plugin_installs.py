"""Packages with methods and problems, installed with pip into a folder that this process sees for a while."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import invalidate_caches
from pathlib import Path

from digrad._internal import plugins
from torch_processes import SEARCHED

_OPTIONS = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index")


def install(source: Path, target: Path) -> Path:
    """Install the package in ``source`` into ``target``, without the network."""
    command = [sys.executable, "-m", "pip", "install", *_OPTIONS, "--target", target, source]
    subprocess.run(command, check=True)
    return target


def announce(target: Path, package: str, entries: str, source: str = "") -> Path:
    """Write what pip would have left of a package of one module that announces ``entries``, as INI text."""
    facts = target / f"{package}-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(entries)
    (target / f"{package}.py").write_text(source)
    return target


def announce_rendezvous(target: Path) -> str:
    """Announce what digrad has for torchrun, as its installation does; return where Python then searches."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    points = [f"{name} = {point}" for name, point in project["entry-points"]["torchrun.handlers"].items()]
    announce(target, "handlers", "\n".join(["[torchrun.handlers]", *points, ""]))
    return os.pathsep.join([str(target), SEARCHED])


@contextmanager
def visible(target: Path) -> Iterator[None]:
    """Make what is installed in ``target`` part of this process inside the block."""
    modules = set(sys.modules)
    sys.path.insert(0, str(target))
    _forget()
    try:
        yield
    finally:
        sys.path.remove(str(target))
        for name in {path.stem for path in target.glob("*.py")} - modules:
            sys.modules.pop(name, None)
        _forget()


def _forget() -> None:
    invalidate_caches()
    plugins.installed.cache_clear()
    plugins.load.cache_clear()
