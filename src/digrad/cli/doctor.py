"""``digrad doctor``: what is installed and found here, what is missing, and the command that fixes it."""

import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from digrad._internal.available_cores import available_cores
from digrad.cli import output
from digrad.cli.shared_options import json_option

_FOR_DEVELOPERS = ("test", "docs")  # extras of a checkout, which `make` installs


@dataclass(frozen=True)
class Finding:
    """One line of the answer."""

    subject: str
    found: str
    fix: str = ""  # the command, or nothing when all is well
    needed: bool = False  # whether digrad cannot work without the fix


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Check the installation: versions, threads, devices, data, and how to fix what is missing.

    Exits with 1 if something is missing that digrad needs.
    """
    findings = [*_versions(), *_machine(), *_folders(), *_data(), *_plugins()]
    if as_json:
        output.as_json(findings)
    else:
        output.table(("", "here", "to do"), [(f.subject, f.found, f.fix) for f in findings])
    if any(finding.needed for finding in findings):
        sys.exit(1)


def _versions() -> Iterator[Finding]:
    yield Finding("python", platform.python_version())
    yield Finding("digrad", importlib.metadata.version("digrad"))
    for name, extra in _requirements():
        try:
            yield Finding(f"{name} ({extra})" if extra else name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            fix = f"pip install 'digrad[{extra}]'" if extra else f"pip install {name}"
            yield Finding(f"{name} ({extra})" if extra else name, "not installed", fix, needed=not extra)


def _requirements() -> list[tuple[str, str]]:
    """Return what digrad needs, and what its extras bring, as package and extra."""
    found = [
        (re.match(r"[\w.-]+", line), re.search(r"extra == ['\"]([\w-]+)['\"]", line))
        for line in importlib.metadata.requires("digrad") or ()
    ]
    pairs = [(name[0], extra[1] if extra else "") for name, extra in found if name]
    return sorted((pair for pair in pairs if pair[1] not in _FOR_DEVELOPERS), key=lambda pair: pair[1])


def _machine() -> Iterator[Finding]:
    import jax

    yield Finding("cores", str(available_cores()))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        yield Finding(name, os.environ.get(name, "not set: as many threads as cores"))
    yield Finding("jax devices", ", ".join(f"{device.platform} {device.id}" for device in jax.devices()))
    if importlib.util.find_spec("torch"):
        import torch

        backends = [
            name for name in ("gloo", "nccl", "mpi") if getattr(torch.distributed, f"is_{name}_available")()
        ]
        yield Finding("torch.distributed", ", ".join(backends) or "none", needed=not backends)


def _folders() -> Iterator[Finding]:
    from digrad._internal.folders import cache_folder

    folder = cache_folder()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            yield Finding("cache", str(folder))
    except OSError as error:
        reason = f"{folder} cannot be written ({error.strerror})"
        yield Finding("cache", reason, "set DIGRAD_CACHE to a folder of yours")


def _data() -> Iterator[Finding]:
    from digrad.data import list_datasets

    folder = os.environ.get("DIGRAD_DATA")
    if folder and not Path(folder).is_dir():
        yield Finding(
            "DIGRAD_DATA", f"{folder} is no folder", "set it to the folder of your data, or unset it"
        )
    for row in list_datasets():
        found = row.problem or row.location
        yield Finding(f"data {row.name}", found or "not here", "" if found else f"digrad data get {row.name}")


def _plugins() -> Iterator[Finding]:
    from digrad._internal import plugins
    from digrad.methods import METHODS
    from digrad.methods.registry import ALL_METHODS
    from digrad.specs.problem_table import KINDS

    repair = "repair or uninstall that package"
    for group, built_in in ((plugins.METHODS, METHODS), (plugins.PROBLEMS, KINDS)):
        try:
            names = plugins.installed(group)
        except plugins.PluginError as error:
            yield Finding(group, str(error), "uninstall one of the two")
            continue
        for name in names:
            package = plugins.package_of(group, name) or ""
            if name in built_in:
                yield Finding(
                    f"{group} {name}", f"{package}: not used, as digrad has one of that name", repair
                )
                continue
            try:
                _ = ALL_METHODS[name] if group == plugins.METHODS else plugins.load(group, name)
            except plugins.PluginError as error:
                yield Finding(f"{group} {name}", str(error), repair)
            else:
                yield Finding(f"{group} {name}", package)
