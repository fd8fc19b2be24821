"""Commands in processes of their own, to their end."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def ended(*command: str | Path, folder: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """How a command ended, and what it printed, with these variables of the environment beside this process's own."""
    own = {**os.environ, **environment}
    return subprocess.run(command, cwd=folder, env=own, check=False, capture_output=True, text=True, encoding="utf-8")
