"""How often `tunebench regress` is wrong: a commit that makes a kernel 5 % slower, and one that changes nothing.

    python -m tests.benchmarks.regressions --runs 20

makes a git repository with a kernel whose time is the turns of a loop (200, then 210; or the sum written the other way
round), runs `regress` on both commits so many times, and prints a line for each. An answer is wrong where the slower
commit passes or the other one fails. It exits with 1 where one was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from versions_of_a_kernel import Repository

ROWS = 4
"""Of the input: a call takes 0.4 ms, which a busy machine seldom interrupts."""

WANTED = {"slower": 1, "equal": 0}
"""The exit code that is right for each commit."""


def main() -> None:
    """Run them and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=20, help="of each commit")
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        repository = Repository(Path(folder) / "repository")
        repository.turns(200)
        repository.git("tag", "base")
        for name, change in (("slower", lambda: repository.turns(210)), ("equal", repository.same_work)):
            repository.git("checkout", "--quiet", "-b", name, "base")
            change()
        wrong = {name: sum(not _is_right(repository, name, run) for run in range(runs)) for name in WANTED}
    print(", ".join(f"{name}: {wrong[name]} of {runs} wrong" for name in WANTED))
    sys.exit(any(wrong.values()))


def _is_right(repository: Repository, name: str, run: int) -> bool:
    started = time.monotonic()
    command = [sys.executable, "-m", "tunebench", "regress", "base", name, "--device", "cpu", "--json"]
    command += ["--repository", str(repository.folder), "--size", f"rows={ROWS}"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if done.returncode not in (0, 1):
        sys.exit(done.stderr)
    change: dict[str, Any] = json.loads(done.stdout)["changes"][0]
    ratio, right = change["ratio"], done.returncode == WANTED[name]
    found = f"{ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]" if ratio else change["says"]
    took = f"{time.monotonic() - started:.0f} s, load {os.getloadavg()[0]:.1f}"
    print(f"{name} {run}: {change['outcome']} {found}, {took}{'' if right else ' WRONG'}", flush=True)
    return right


if __name__ == "__main__":
    main()
