"""How far winners serve: each is timed against the reference at the problems beside its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tunebench.db.connection.database import Database
from tunebench.db.queries.rows import BestRow
from tunebench.kernels.runtime.registry import load_model, target_of
from tunebench.kernels.runtime.selection import neighbours
from tunebench.studies.checking.compare import REFERENCE, KernelQuestion, KernelSide, compare
from tunebench.studies.tuning.for_problem import UnfitProblemError, resolve_problem
from tunebench.studies.tuning.on_this_machine import alone
from tunebench.studies.tuning.study_file import StudyRequest
from tunebench.studies.writing.ship import RangeTest, winners_of
from tunebench.tuner.device import Device, DeviceKind
from tunebench.tuner.errors import TunebenchError
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.problem import Problem

Tell = Callable[[str], None]


def find_ranges(
    database: Database,
    kernels: Sequence[Kernel],
    requests: Mapping[tuple[str, Problem | None], StudyRequest],
    devices: Sequence[Device],
    tell: Tell,
) -> tuple[RangeTest, ...]:
    """Test the winners of these kernels at their neighbours' problems, on all devices at once.

    A neighbour with the same winner is its own test. Where the reference is the faster one nothing has a range.

    Args:
        requests: those that made a kernel's problems, as far as they are known.
        devices: of one model; a CPU runs one test at a time.
        tell: called with a line on each test.

    Raises:
        DatabaseError: the database cannot be read.
    """
    asked = [
        (row, other)
        for kernel in kernels
        for rows in winners_of(database, kernel, devices[0].name).values()
        for row, other in _pairs(list(rows.values()))
    ]
    targets = {kernel.name: target_of(kernel) for kernel in kernels}
    free = list(devices if devices[0].kind is DeviceKind.CUDA else devices[:1])

    def run(pair: tuple[BestRow, BestRow]) -> RangeTest | None:
        row, other = pair
        device = free.pop()
        try:
            request = requests.get((row.kernel, other.problem))
            request = request or resolve_problem(targets[row.kernel], other.problem, {}).request
            test = _test(row, other.problem, alone(request, device))
        except UnfitProblemError as error:
            tell(str(error))
            return None
        finally:
            free.append(device)
        tell(describe(test))
        return test

    with ThreadPoolExecutor(len(free)) as threads:
        try:
            return tuple(test for test in threads.map(run, asked) if test is not None)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)  # those that have begun end by themselves
            raise


def _pairs(rows: Sequence[BestRow]) -> Iterator[tuple[BestRow, BestRow]]:
    """Winners with the neighbours to test them at."""
    by_problem = {row.problem: row for row in rows}
    for row in rows:
        for problem in neighbours(row.problem, by_problem.keys()):
            other = by_problem[problem]
            if other.configuration != row.configuration and not (row.reference_is_faster or other.reference_is_faster):
                yield row, other


def _test(row: BestRow, problem: Problem, request: StudyRequest) -> RangeTest:
    mode = load_model(request.kernel).kernel.mode_of(problem)
    winner = KernelSide(f"the winner at {row.problem}", dict(row.configuration))
    untold = RangeTest(row.kernel, row.problem, problem, row.configuration, None)
    try:
        report = compare(KernelQuestion(request, mode, winner, KernelSide(REFERENCE, None)))
    except TunebenchError as error:
        return replace(untold, message=str(error))
    if report.ratio is None:
        return replace(untold, message=report.refusal)
    if report.control is not None and report.control.differs:
        return replace(untold, message=f"the rounds told two copies of the reference apart ({report.control})")
    return replace(untold, over_reference=report.ratio)


def describe(test: RangeTest) -> str:
    """A test in one line."""
    found = test.message if test.over_reference is None else f"{test.over_reference} over the reference"
    verdict = "in its range" if test.holds else "beyond its range"
    return f"{test.kernel}: the winner at {test.problem}, tried at {test.neighbour}: {verdict}, {found}"
