"""Where digrad keeps what it can make or fetch again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of downloads: ``DIGRAD_CACHE``, else the user's cache folder of the platform."""
    override = os.environ.get("DIGRAD_CACHE")
    if override:
        return Path(override).expanduser()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("digrad", appauthor=False))
