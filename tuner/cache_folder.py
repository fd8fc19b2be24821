"""The folder of builds, and of whatever else can be made again."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def default_cache_folder() -> Path:
    """Return `$TUNEBENCH_CACHE` where it is set, else the user's cache folder."""
    chosen = os.environ.get("TUNEBENCH_CACHE")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("tunebench")) / "builds"
