"""`python -m tunebench` and the `tunebench` command."""

from __future__ import annotations

import io
import os
import sys

from tunebench.tuner.errors import TunebenchError, UserError


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 the answer is no, 2 the question was wrong, 130 Ctrl-C."""
    _make_output_survive()
    from tunebench.studies.cli import app

    try:
        app()
    except UserError as error:
        print(f"tunebench: {error}", file=sys.stderr)
        sys.exit(2)
    except TunebenchError as error:
        print(f"tunebench: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("tunebench: interrupted", file=sys.stderr)
        sys.exit(130)


def _make_output_survive() -> None:
    """Let a terminal that lacks a character show its escape, and a closed output swallow what it is given."""
    while (nowhere := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # a database that got the number of a closed output would be printed into
    swallow = os.fdopen(nowhere, "w", encoding="utf-8")
    sys.stdout, sys.stderr = sys.stdout or swallow, sys.stderr or swallow
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
