"""The gate on every problem of the exam, at small sizes: `python -m tests.benchmarks.exam.check [PART]...`.

Prints a line each, the largest error and the time; exits with 1 where one is refused.
"""

from __future__ import annotations

import sys
import time

from tests.benchmarks.exam.problems import ExamProblem, problems

import tunebench
from tunebench.tuner.scratch import scratch


def main() -> int:
    """Check those whose class or name has one of the parts; all without any."""
    refused = 0
    with scratch() as folder:
        for problem in problems(folder, small=True, only=sys.argv[1:]):
            refused += _is_refused(problem)
    print(f"{refused} refused")
    return 1 if refused else 0


def _is_refused(problem: ExamProblem) -> bool:
    began = time.monotonic()
    try:
        problem.write()
        verdicts = [one.verdict for one in tunebench.check(problem.path, sizes=problem.sizes, device="cpu")]
        reason = "; ".join(one.reason for one in verdicts if not one.passed)
    except tunebench.TunebenchError as error:
        reason = str(error)
    print(f"{problem.name:45} {reason or 'passed'} ({time.monotonic() - began:.0f} s)", flush=True)
    return bool(reason)


if __name__ == "__main__":
    sys.exit(main())
