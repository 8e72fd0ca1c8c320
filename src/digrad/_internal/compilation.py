"""Compiled loops kept between processes: the second run of a shape on one machine starts at once."""

import hashlib
import os
import platform
import sys
from pathlib import Path

from digrad._internal.folders import cache_folder

SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": "0",  # ours take a second or two, and there are many of them
    "jax_persistent_cache_min_entry_size_bytes": "-1",
}


def keep_compiled(folder: Path | str | None = None) -> Path:
    """Keep what JAX compiles in a folder, for all later processes, and return the folder.

    The command line does this by itself. What is set already, here or by a variable ``JAX_...``, stays.

    Args:
        folder: By default ``compiled`` in the cache folder, which ``DIGRAD_CACHE`` may name, with a folder per kind
            of processor: machines that share a home need not understand each other's code. JAX itself keeps
            versions apart.
    """
    folder = Path(folder) if folder is not None else cache_folder() / "compiled" / _processor()
    for name, value in {"jax_compilation_cache_dir": str(folder), **SETTINGS}.items():
        if name.upper() in os.environ:
            continue
        os.environ[name.upper()] = (
            value  # for processes that this one starts, and for JAX when it is loaded later
        )
        if "jax" in sys.modules:
            sys.modules["jax"].config.update(name, int(value) if name in SETTINGS else value)
    return Path(os.environ["JAX_COMPILATION_CACHE_DIR"])


def _processor() -> str:
    """Return a short name that processors with the same instructions share."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()}-{hashlib.sha256(flags.encode()).hexdigest()[:8]}"
