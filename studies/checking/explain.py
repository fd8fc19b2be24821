"""Why does a trial take as long as it does? Counters where they may be read, else the compiler's figures and rates.

As a program (`python -m tunebench.studies.checking.explain FILE`) it makes a trial's forward once for Nsight Compute.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunebench.db.connection.database import Database, open_database
from tunebench.db.queries.one_trial import TrialDetails, trial_details
from tunebench.db.queries.studies import newest_comparison
from tunebench.db.upkeep.counters import keep_counters
from tunebench.kernels.runtime.registry import kernel_names, load_model
from tunebench.studies.checking.compare import REFERENCE, KernelQuestion, finalist_of, question_of
from tunebench.studies.display.report.rates import Ceilings, Resources, ceilings, resources, share_words
from tunebench.studies.display.report.style import decimal_unit, number, time_unit
from tunebench.studies.tuning.resolved import make_evaluator
from tunebench.tuner.device import find_device
from tunebench.tuner.device_lock import alone_on
from tunebench.tuner.errors import TunebenchError, UserError
from tunebench.tuner.problem import Work
from tunebench.tuner.result import LaunchCounters
from tunebench.tuner.scratch import scratch
from tunebench.tuner.timing.counters import CountersError, longest, read_counters, reason_of

WITHOUT = "by the compiler's figures and the roofline alone"


@dataclass(frozen=True)
class Explanation:
    """A trial's time explained.

    Attributes:
        facts: what is known of it, by name, in words.
        counters: of its launches; empty where they could not be read.
        why_without: why there are none; empty where there are.
        reason: what it waits for, in one sentence; of a trial without a time, why it has none.
    """

    details: TrialDetails
    facts: Mapping[str, str]
    counters: tuple[LaunchCounters, ...]
    why_without: str
    reason: str


def explain(database: Database, trial_id: int, *, recorded: bool = False, again: bool = False) -> Explanation:
    """Explain a trial's time; counters that are read are kept with it.

    Args:
        recorded: run nothing.
        again: read the counters, whatever is recorded.

    Raises:
        UserError: there is no such trial, or both options are given.
        DatabaseError: the database cannot be read or written.
    """
    if recorded and again:
        raise UserError("--recorded runs nothing and --again reads the counters: leave out one of the two")
    details = trial_details(database, trial_id)
    if details.row.median_ms is None:
        return Explanation(details, {}, (), "it has no time", f"{details.row.status}: {details.row.message}")
    where = database.url.render_as_string(hide_password=False)
    counters, why = details.trial.counters, ""
    if again or not counters:
        counters = () if again else counters
        try:
            if recorded:
                raise CountersError("none are recorded")
            counters = _read(details, where)
            with open_database(where) as writable:
                keep_counters(writable, trial_id, counters)
        except (CountersError, UserError) as error:
            why = str(error)
    work, known = _rates(database, details)
    taken = resources(details.trial, details.study.device)
    return Explanation(
        details, _facts(details, taken, work, known), counters, why, _reason(details, counters, taken, work, known)
    )


def _read(details: TrialDetails, where: str) -> tuple[LaunchCounters, ...]:
    """Make the trial's forward again under Nsight Compute.

    Raises:
        CountersError: that cannot be done here.
        UserError: the trial is not one of the kernel as it is here.
    """
    if details.study.device.kind != "cuda":
        raise CountersError("a CPU has no counters that tunebench reads")
    device = find_device("cuda")
    if device.architecture != details.study.device.architecture:
        raise CountersError(f"it ran on {details.row.device_name}, and this is {device.name}")
    question = question_of(details.row.trial_id, REFERENCE, database=where)
    with scratch() as folder, alone_on(device, "tunebench explain"):
        file = folder / "question"
        file.write_bytes(pickle.dumps(question))
        return read_counters([sys.executable, "-P", "-m", __name__, str(file)])


def _rates(database: Database, details: TrialDetails) -> tuple[Work | None, Ceilings | None]:
    """Return the problem's work, and the ceilings that the study's comparison found, as far as they are known."""
    row = details.row
    comparison = newest_comparison(database, row.study_id)
    work = comparison.work if comparison else None
    if work is None and row.kernel in kernel_names():
        try:
            work = load_model(row.kernel).kernel.work(row.problem)
        except (LookupError, TypeError, ValueError, ArithmeticError):
            return None, None
    if work is None or comparison is None or not (work.bytes and work.operations):
        return work, None
    clock = comparison.conditions.sm_clock_mhz or details.trial.environment.sm_clock_mhz
    return work, ceilings(details.study.device, comparison, work, clock)


def _facts(details: TrialDetails, taken: Resources, work: Work | None, known: Ceilings | None) -> dict[str, str]:
    median_ms = details.row.median_ms or 0.0
    facts = {"time": time_unit(median_ms).text(median_ms)}
    if work is not None and work.bytes and work.operations:
        moved, rate = work.bytes / median_ms * 1e3, work.operations / median_ms * 1e3
        facts["memory"] = decimal_unit(moved, "B/s").text(moved)
        facts["arithmetic"] = decimal_unit(rate, "op/s").text(rate)
        if known is not None and known.bytes_per_second is not None:
            facts["reaches"] = share_words(rate, work.operations / work.bytes, known)
    figures = {"registers": taken.registers, "spills": taken.spills, "shared memory": taken.shared}
    units = {"registers": "a thread", "spills": "B a thread", "shared memory": "B a block"}
    facts |= {name: f"{value:,} {units[name]}" for name, value in figures.items() if value is not None}
    if (held := taken.occupancy) is not None:
        facts["occupancy"] = f"{100 * held.share:.0f} %: {held.blocks} blocks, bound by {held.bound}"
    return facts


def _reason(
    details: TrialDetails,
    counters: Sequence[LaunchCounters],
    taken: Resources,
    work: Work | None,
    known: Ceilings | None,
) -> str:
    if counters:
        return reason_of(longest(counters))
    texts = []
    if work is not None and known is not None and known.bytes_per_second is not None:
        rate = work.operations / (details.row.median_ms or 1.0) * 1e3
        texts.append(f"it reaches {share_words(rate, work.operations / work.bytes, known)}")
    if taken.spills:
        texts.append(f"registers ran out: {number(taken.spills)} B a thread go through memory")
    if taken.occupancy is not None and taken.occupancy.share < 0.5:
        texts.append(f"{taken.occupancy.bound} keep occupancy at {100 * taken.occupancy.share:.0f} %")
    return f"{WITHOUT}: {'; '.join(texts) or 'they point at nothing'}."


def main(file: str) -> None:
    """Make a trial's forward once between the profiler's start and stop, warm."""
    import torch

    question: KernelQuestion = pickle.loads(Path(file).read_bytes())
    evaluator = make_evaluator(question.request, question.mode)
    finalist = finalist_of(question.request, question.first, evaluator)
    if finalist is None:
        raise TunebenchError("a reference has no launches of its own")
    call = evaluator.call_of(finalist)
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main(*sys.argv[1:])
