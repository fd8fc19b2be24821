"""`python -m tunebench` and the `tunebench` command."""

from __future__ import annotations

import sys

from tunebench.tuner.errors import TunebenchError, UserError


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 the answer is no, 2 the question was wrong, 130 Ctrl-C."""
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


if __name__ == "__main__":
    main()
