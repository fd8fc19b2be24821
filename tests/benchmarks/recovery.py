"""What is left of a killed study, and what crashing variants cost: `python -m tests.benchmarks.recovery`.

`kills`: a study is started again and again and killed with SIGKILL at random moments, all its processes' parent first.
After each kill the database is looked at: every trial seen before the kill is still there as it was, nothing is half
written. In the end the same command runs to its end, and its trials are those of a study that nobody disturbed.

`crashes`: a study of whose variants about 30 % crash their worker, beside the same study in which none does.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tunebench.db.connection.database import open_database
from tunebench.db.queries.one_trial import trial_details
from tunebench.db.queries.trials import trials
from tunebench.db.upkeep.check import inspect_database
from tunebench.tuner.errors import DatabaseError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

_LOOK_SECONDS = 0.05

Trial = tuple[int, str, str]
"""A trial as far as it does not depend on how fast anything is: number, configuration, whether it was right."""


@dataclass(frozen=True)
class Kill:
    """One kill and what was found after it.

    Attributes:
        after_s: from the start of the process to the kill.
        before, after: trials in the database when the process was killed, and afterwards.
        problems: what was not as it should be.
    """

    number: int
    after_s: float
    before: int
    after: int
    problems: tuple[str, ...]


def command(target: str, database: Path, count: int, options: Sequence[str] = ()) -> list[str]:
    """A study on the CPU whose configurations do not depend on measured times."""
    study = ["tune", target, "--device", "cpu", "--sampler", "random", "--trials", str(count), "--db", str(database)]
    return [sys.executable, "-m", "tunebench", *study, *options]


def run(arguments: Sequence[str]) -> float:
    """Run a command to its end; the seconds it took.

    Raises:
        CalledProcessError: it failed.
    """
    started = time.perf_counter()
    subprocess.run(arguments, check=True, capture_output=True)
    return time.perf_counter() - started


def trials_in(database: Path) -> list[Trial]:
    """The study's trials by number; none where there is no database yet."""
    if not database.exists():
        return []
    try:
        with open_database(database, read_only=True) as opened:
            rows = sorted(trials(opened, limit=None), key=lambda row: row.number)
    except DatabaseError:
        return []  # its tables are just being made
    return [(row.number, row.configuration.key, "right" if row.status.timed else row.status.value) for row in rows]


def problems_of(database: Path, before: Sequence[Trial]) -> list[str]:
    """What is wrong with a database after a kill."""
    after = trials_in(database)
    found = [] if after[: len(before)] == list(before) else ["a trial that had been recorded is gone or has changed"]
    if [number for number, _, _ in after] != list(range(len(after))):
        found.append("trial numbers have gaps")
    if len({configuration for _, configuration, _ in after}) != len(after):
        found.append("a configuration was tried twice")
    if after:
        with open_database(database, read_only=True) as opened:
            found += [problem for finding in inspect_database(opened) for problem in finding.problems]
    return found


def kill_study(arguments: Sequence[str], database: Path, number: int, seconds: float, *, beginning: bool) -> Kill:
    """Start the study and kill it after so many seconds, unless it has ended by then.

    Args:
        beginning: the seconds count from the start of the process; else from the first trial that it adds, which on a
            busy machine comes late.
    """
    had = len(trials_in(database))
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    started = time.perf_counter()
    while not beginning and process.poll() is None and len(trials_in(database)) == had:
        time.sleep(_LOOK_SECONDS)
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    before = trials_in(database)
    process.kill()
    after_s = time.perf_counter() - started
    process.wait()
    return Kill(number, after_s, len(before), len(trials_in(database)), tuple(problems_of(database, before)))


def kill_again_and_again(
    target: str,
    options: Sequence[str],
    folder: Path,
    count: int,
    kills: int,
    latest_s: float,
    seed: int,
    report: Callable[[Kill], None],
) -> list[str]:
    """The whole test: kills at random moments, then the end of the study, compared with an undisturbed one.

    One kill in three comes while the process begins, the others while it adds trials.

    Args:
        count: trials of the study.
        latest_s: kills come at moments drawn evenly from so many seconds.

    Returns:
        Everything that was not as it should be.
    """
    moments = random.Random(seed)
    disturbed, undisturbed = folder / "disturbed.db", folder / "undisturbed.db"
    problems: list[str] = []
    for number in range(1, kills + 1):
        seconds, beginning = moments.uniform(0, latest_s), number % 3 == 0
        kill = kill_study(command(target, disturbed, count, options), disturbed, number, seconds, beginning=beginning)
        report(kill)
        problems += [f"kill {number}: {problem}" for problem in kill.problems]
    for database in (disturbed, undisturbed):
        run(command(target, database, count, options))
    if trials_in(disturbed) != trials_in(undisturbed):
        problems.append("the trials are not those of an undisturbed study")
    if len(trials_in(disturbed)) != count:
        problems.append(f"{len(trials_in(disturbed))} trials instead of {count}")
    return [*problems, *(f"at the end: {problem}" for problem in problems_of(disturbed, []))]


@app.command("kills")
def kills_command(
    kills: Annotated[int, typer.Option(min=1, help="How often the study is killed.")] = 50,
    count: Annotated[int, typer.Option("--trials", min=1, help="Trials of the study.")] = 600,
    latest: Annotated[float, typer.Option(min=0.0, help="Seconds within which kills come.")] = 3.0,
    seed: Annotated[int, typer.Option(help="Of the moments.")] = 0,
) -> None:
    """Kill a study at random moments and print what was found after each; exit code 1 where something was wrong."""
    options = ("--size", "M=64", "--size", "N=256")
    with tempfile.TemporaryDirectory() as name:
        found = kill_again_and_again("scalar_mul", options, Path(name), count, kills, latest, seed, _print_kill)
    print(f"{kills} kills, {count} trials: {'; '.join(found) or 'nothing lost, nothing twice, nothing half written'}")
    if found:
        raise typer.Exit(1)


def _print_kill(kill: Kill) -> None:
    found = "; ".join(kill.problems) or "sound"
    print(f"kill {kill.number:2} after {kill.after_s:4.2f} s: {kill.before} trials seen, {kill.after} kept, {found}")
    sys.stdout.flush()


@dataclass(frozen=True)
class Ending:
    """How a command ended.

    Attributes:
        code: its exit code.
        lines: what it printed on standard error, without the line with which a study begins.
    """

    code: int
    lines: tuple[str, ...]

    @property
    def is_one_line(self) -> bool:
        """Whether a reader is told in one line, whatever it is."""
        return len(self.lines) <= 1 and not any("Traceback" in line for line in self.lines)


def interrupt(arguments: Sequence[str], seconds: float, number: signal.Signals) -> Ending:
    """Send a signal to a command and all its processes after so many seconds, as a terminal does."""
    process = subprocess.Popen(
        arguments,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
        encoding="utf-8",
    )
    time.sleep(seconds)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    _, errors = process.communicate()
    # What a study says before it ends is not how it ends.
    lines = [line for line in errors.splitlines() if line.strip() and not line.startswith(("tuning ", "scalar_mul"))]
    return Ending(process.returncode, tuple(lines))


@app.command("signals")
def signals_command(
    count: Annotated[int, typer.Option(min=1, help="How many signals are sent.")] = 40,
    latest: Annotated[float, typer.Option(min=0.0, help="Seconds within which they come.")] = 8.0,
    seed: Annotated[int, typer.Option(help="Of the moments.")] = 0,
) -> None:
    """Interrupt a study at random moments of its start and its run; exit code 1 where one did not end in one line."""
    moments = random.Random(seed)
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        for turn in range(1, count + 1):
            number = signal.SIGTERM if turn % 4 == 0 else signal.SIGINT
            seconds = moments.uniform(0.1, latest)
            database = Path(name) / "a.db"
            before = trials_in(database)
            arguments = command(
                "scalar_mul", database, 100_000, ("--size", "M=64", "--size", "N=256", "--seed", str(turn))
            )
            ending = interrupt(arguments, seconds, number)
            good = ending.is_one_line and ending.code == 128 + number
            good &= set(trials_in(database)) >= set(before)
            wrong += not good
            last = ending.lines[-1] if ending.lines else ""
            print(
                f"{number.name} {turn:2} after {seconds:4.2f} s: exit code {ending.code}, "
                f"{len(ending.lines)} line(s): {last}",
                flush=True,
            )
    print(f"{count} signals: {count - wrong} ended in one line and with nothing lost, {wrong} did not")
    if wrong:
        raise typer.Exit(1)


@app.command("helpers")
def helpers_command(
    workers: Annotated[int, typer.Option(min=0, help="How many workers are killed.")] = 10,
    compilers: Annotated[int, typer.Option(min=0, help="How many compilers are killed.")] = 20,
    trial_count: Annotated[int, typer.Option("--trials", min=1, help="Trials of the study.")] = 400,
    seed: Annotated[int, typer.Option(help="Of the moments.")] = 0,
) -> None:
    """Kill workers and compilers of a running study; exit code 1 where a variant is blamed for it."""
    moments = random.Random(seed)
    left = {"worker": workers, "cc1plus": compilers}
    with tempfile.TemporaryDirectory() as name:
        os.environ["TUNEBENCH_CACHE"] = f"{name}/builds"  # everything is compiled
        database = Path(name) / "a.db"
        options = ("--size", "M=64", "--size", "N=256")
        process = subprocess.Popen(
            command("scalar_mul", database, trial_count, options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        seen: set[str] = set()
        while process.poll() is None and any(left.values()):
            time.sleep(moments.uniform(0.1, 0.4))
            kind = moments.choice([kind for kind, count in left.items() if count])
            for victim in _helpers_of(process.pid, kind)[:1]:
                # What is killed twice is refused, as it should be: here each variant loses one process at most.
                with suppress(OSError):
                    at_work = Path("/proc", str(victim), "cwd", "variant.cu")
                    what = at_work.read_text(encoding="utf-8") if kind == "cc1plus" else str(len(trials_in(database)))
                    if what not in seen:
                        os.kill(victim, signal.SIGKILL)
                        seen.add(what)
                        left[kind] -= 1
                        print(f"killed {kind} {victim}", flush=True)
        output, _ = process.communicate()
        rows = trials_in(database)
        refused = [row for row in rows if row[2] in ("compile", "runtime")]
        killed = f"{workers - left['worker']} workers and {compilers - left['cc1plus']} compilers"
        print(
            f"{killed} killed: exit code {process.returncode}, {len(rows)} trials, {len(refused)} of them refused "
            f"for it, {'a traceback' if b'Traceback' in output else 'no traceback'}"
        )
        if refused or process.returncode or b"Traceback" in output or problems_of(database, []):
            raise typer.Exit(1)


def _helpers_of(process: int, kind: str) -> list[int]:
    """Ids of a study's compilers, or of its worker: the process that its fork server has forked."""
    found = []
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            status = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            parents[int(folder.name)] = int(status.rpartition(")")[2].split()[1])
    for one in parents:
        line = [one]
        while line[-1] in parents and line[-1] != process:
            line.append(parents[line[-1]])
        if line[-1] != process:
            continue
        with suppress(OSError):
            program = Path("/proc", str(one), "comm").read_text(encoding="utf-8").strip()
            is_fork = len(line) == 3 and b"forkserver" in Path("/proc", str(one), "cmdline").read_bytes()
            if program == kind or (kind == "worker" and is_fork):
                found.append(one)
    return found


CRASH = "if (k % 10 < 3) { *reinterpret_cast<volatile int*>(k % 10) = 0; } "


@app.command("crashes")
def crashes_command(variants: Annotated[int, typer.Option(min=10, help="Configurations of the study.")] = 100) -> None:
    """Time a study of whose variants 30 % crash, and the same study without crashes; the figures as JSON."""
    with tempfile.TemporaryDirectory() as name:
        os.environ["TUNEBENCH_CACHE"] = f"{name}/builds"
        clean = _crash_study(Path(name), variants, "")
        crashing = _crash_study(Path(name), variants, CRASH)
    restarts = crashing["crashed"]
    each = crashing["restart_seconds"]
    print(
        json.dumps(
            {
                "variants": variants,
                "clean_seconds": clean["seconds"],
                "crashing_seconds": crashing["seconds"],
                "crashed": restarts,
                "seconds_of_one_restart": each,
                "clean_and_restarts_seconds": clean["seconds"] + restarts * each,
            },
            indent=2,
        )
    )


def _crash_study(folder: Path, variants: int, crash: str) -> dict[str, Any]:
    """Seconds of a study, crashes, and what a worker's restart took on average."""
    from tunebench.studies.tuning.resolved import resolve
    from tunebench.studies.tuning.study_file import request_of
    from tunebench.studies.tuning.tune import tune
    from tunebench.tuner.result import TrialStatus

    kernel = folder / ("crashing" if crash else "clean") / "weigh"
    kernel.mkdir(parents=True)
    for file, text in crash_kernel(variants, crash).items():
        (kernel / file).write_text(text, encoding="utf-8")
    request = request_of(str(kernel), {"device": "cpu", "sampler": "exhaustive", "trials": variants})
    with open_database(folder / f"{kernel.parent.name}.db") as database:
        (report,) = tune(resolve(request), database)
        phases = [trial_details(database, row.trial_id).trial.result.seconds for row in trials(database, limit=None)]
    restarts = [seconds["restart"] for seconds in phases if "restart" in seconds]
    return {
        "seconds": report.outcome.seconds,
        "crashed": report.outcome.counts.get(TrialStatus.RUNTIME, 0),
        "restart_seconds": sum(restarts) / len(restarts) if restarts else 0.0,
    }


def crash_kernel(variants: int, crash: str) -> dict[str, str]:
    """The files of a kernel with a tunable `k` of so many values, some of which may crash."""
    return {
        "reference.py": _REFERENCE,
        "model.py": _MODEL.replace("VARIANTS", str(variants)),
        "weigh.cu": _SOURCE.replace("CRASH", crash),
    }


_REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return x * 2.0

def get_inputs():
    return [torch.rand(4096) + 0.1]

def get_init_inputs():
    return []
"""

_SOURCE = """
extern "C" __global__ void weigh(const scalar_t* x, scalar_t* y, long long n) {
    for (long long i = blockIdx.x * 64LL + threadIdx.x; i < n; i += gridDim.x * 64LL) {
        CRASHy[i] = x[i] * 2;
    }
}
"""

_MODEL = """
import torch
from tunebench import Kernel, SearchSpace, Tunable, TunedModule
from .reference import Model

# In an order in which no three variants in a row crash: that would stop the study.
VALUES = tuple(sorted(range(VARIANTS), key=lambda k: (k // 10, k * 7 % 10)))
SPACE = SearchSpace((Tunable("k", VALUES, default=5),))

class ModelNew(TunedModule, Model):
    kernel = Kernel.declare(__file__, SPACE, axes={"x": "n", "return": "n"})

    def tuned_forward(self, plan, x):
        y = torch.empty_like(x)
        plan.launch("weigh", x, y, x.numel(), blocks=16, threads=64)
        return y
"""


if __name__ == "__main__":
    app()
