"""Compiled loops kept between processes: the second run of a shape on one machine starts at once."""

import os
import sys
from pathlib import Path

from digrad.folders import cache_folder

SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": "0",  # ours take a second or two, and there are many of them
    "jax_persistent_cache_min_entry_size_bytes": "-1",
}


def keep_compiled(folder: Path | str | None = None) -> Path:
    """Keep what JAX compiles in a folder, for all later processes, and return the folder.

    The command line does this by itself. What is set already, here or by a variable ``JAX_...``, stays.

    Args:
        folder: By default ``compiled`` in the cache folder, which ``DIGRAD_CACHE`` may name.
    """
    folder = Path(folder) if folder is not None else cache_folder() / "compiled"
    for name, value in {"jax_compilation_cache_dir": str(folder), **SETTINGS}.items():
        if name.upper() in os.environ:
            continue
        os.environ[name.upper()] = (
            value  # for processes that this one starts, and for JAX when it is loaded later
        )
        if "jax" in sys.modules:
            sys.modules["jax"].config.update(name, int(value) if name in SETTINGS else value)
    return Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
