"""The gate on every problem of the exam, at small sizes: `python -m tests.benchmarks.exam.check [PART]...`.

Prints a line each, the largest error and the time; exits with 1 where one is refused.
"""

from __future__ import annotations

import sys
import time

from tests.benchmarks.exam.problems import problems

import tunebench


def main() -> int:
    """Check those whose class or name has one of the parts; all without any."""
    refused = 0
    for problem in problems(small=True, only=sys.argv[1:]):
        began = time.monotonic()
        try:
            verdicts = [one.verdict for one in tunebench.check(problem.path, sizes=problem.sizes, device="cpu")]
            reason = "; ".join(one.reason for one in verdicts if not one.passed)
        except tunebench.TunebenchError as error:
            reason = str(error)
        refused += bool(reason)
        print(f"{problem.name:45} {reason or 'passed'} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{refused} refused")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
