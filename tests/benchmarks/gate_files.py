"""What the gate says of files whose truth is known: `python -m tests.benchmarks.gate_files`.

Each file of `tests/gate_files` is written to a temporary folder beside its reference and judged as a user would judge
it: `tunebench check FILE --reference REFERENCE --json`. Both verdicts are compared with what is true of the file; then
comes what is left running or on the disk, which must be nothing. With `--device cuda` come the files that need a GPU,
and those that need the CPU are left out.

`--together` judges by `tunebench.check` in one process, so that only hostile files pay for a command of their own.
`--here` asks the batteries in this process, without the boundary and without hostile files: a tenth of the time.
"""

from __future__ import annotations

import json
import math
import os
import signal
import site
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from tests.gate_files import FILES, HANGS, ON_CUDA, runs_on_cuda
from tests.gate_files.entry import MARK, GateFile
from tests.gate_files.here import report_here
from tests.gate_files.known_disagreements import KNOWN_DISAGREEMENTS

import tunebench
from tunebench.studies.checking import PRELOAD
from tunebench.tuner.errors import UserError
from tunebench.tuner.fork_server import start_forkserver
from tunebench.tuner.gate.boundary.box import Box
from tunebench.tuner.gate.draw import Draw
from tunebench.tuner.gate.refusal import Claim

_SECONDS = 240.0
_SECONDS_OF_A_HANG = 15.0
_END_SECONDS = 10.0
"""What a check has started may take so long to end after it."""
_MOST_STAGES = 4
_MOST_PRINTED = 1 << 20
"""Bytes on standard error: a file's own output is cut off long before."""
ALONE = ("hostile", "machine", "process state")
"""The classes of files of which each is judged by a command of its own."""
_LEFT_FILES = ("/tmp", "/dev/shm", str(Path.home()), site.getusersitepackages())
"""Folders in which a hostile file may leave one with the mark in its name."""


@dataclass(frozen=True)
class Judged:
    """What the gate has said of a file.

    Attributes:
        right: what is true: whether the claim holds.
        problem, drop_in: the two verdicts; None where there was none.
        agrees: the verdicts are as they should be, the check ended as it should, and nothing is left.
        refused_at: the stage that refused first, and what it said.
        code: the exit code; None where there was no command.
        trouble: what else is wrong with how the check ended.
        in_stages, outside: seconds.
        left: what was left running, and files.
        seconds: of each stage.
        refused: all stages that refused.
    """

    name: str
    kind: str
    right: bool
    claim: str
    problem: bool | None
    drop_in: bool | None
    agrees: bool
    refused_at: str
    detail: str
    code: int | None
    trouble: str
    in_stages: float
    outside: float
    left: tuple[str, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)
    refused: Sequence[str] = ()


def judge(file: GateFile, folder: Path, device: str, draw: Draw, box: Box) -> Judged:
    """Judge a file by the command, in a folder of its own."""
    path, reference = _written(file, folder)
    seconds = _SECONDS_OF_A_HANG if file.name in HANGS else _SECONDS
    command = [sys.executable, "-m", "tunebench", "check", str(path), "--device", device, "--json"]
    command += [*([] if file.alone else ["--reference", str(reference)]), "--seconds", str(seconds), *file.flags]
    command += ["--seed", str(draw.seed), "--box", box]
    mark = folder / f"mark-{uuid.uuid4().hex}"
    started = time.perf_counter()
    run = subprocess.Popen(
        command,
        env={"TORCH_EXTENSIONS_DIR": str(folder / "extensions"), **os.environ, MARK: str(mark)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = run.communicate(timeout=seconds + 60)
        trouble = ""
    except subprocess.TimeoutExpired:
        run.kill()
        _left_running(str(mark))  # what is left, and stopped, holds the pipes
        out, err = run.communicate()
        trouble = "it did not end"
    took = time.perf_counter() - started
    left = [*_left_running(str(mark)), *_left_on_disk(mark.name)]
    trouble = trouble or _trouble(file, run.returncode, out, err, mark)
    return _judged(file, _report(out, run.returncode, trouble), run.returncode, trouble, took, left)


def _written(file: GateFile, folder: Path) -> tuple[Path, Path]:
    path, reference = folder / f"{file.slug}.py", folder / "reference.py"
    path.write_text(file.text, encoding="utf-8")
    reference.write_text(file.reference, encoding="utf-8")
    return path, reference


def _trouble(file: GateFile, code: int, out: bytes, err: bytes, mark: Path) -> str:
    if mark.exists():
        return "its code ran where no code of a file runs"
    if b"Traceback" in err or len(err) > _MOST_PRINTED:
        last = err.decode(errors="replace").strip().splitlines()[-1][:300]
        return f"a traceback, or {len(err)} bytes, on standard error: {last}"
    if code == 2 and not file.ends_early:
        return f"exit code 2: {err.decode(errors='replace').strip()[-300:]}"
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if code != 2:
        try:
            json.loads(out)
        except ValueError:
            return "what --json prints does not parse"
    return ""


def judge_together(file: GateFile, folder: Path, device: str, draw: Draw, box: Box) -> Judged:
    """Judge a file by `tunebench.check`, whose processes are forked from one server for all files."""
    if file.kind in ALONE or "load_inline" in file.text:  # extensions of one name, built in one folder, are one
        return judge(file, folder, device, draw, box)
    path, reference = _written(file, folder)
    started = time.perf_counter()
    declared = [flag.removeprefix("--") for flag in file.flags]
    try:
        (report,) = tunebench.check(
            path, reference, device=device, seconds=_SECONDS, declared=declared, seed=draw.seed, box=box
        )
    except UserError:  # there is nothing to compare with
        return _judged(file, {}, 2, "", time.perf_counter() - started, ())
    took = time.perf_counter() - started
    told = {
        "right_for_problem": report.holds(Claim.PROBLEM),
        "drop_in": report.holds(Claim.DROP_IN),
        "stages": [asdict(stage) for stage in report.verdict.stages],
    }
    return _judged(file, told, None, "", took, ())


def judge_here(file: GateFile, folder: Path, _device: str, draw: Draw, _box: Box) -> Judged:
    """Judge a file in a fork of this process, on the CPU."""
    started = time.perf_counter()
    return _judged(file, report_here(file, folder, draw), None, "", time.perf_counter() - started, ())


def _report(out: bytes, code: int, trouble: str) -> Mapping[str, Any]:
    """The one report of a check; empty where there is none."""
    if trouble or code == 2:
        return {}
    (report,) = json.loads(out)
    return dict(report)


def _judged(
    file: GateFile, report: Mapping[str, Any], code: int | None, trouble: str, took: float, left: Sequence[str]
) -> Judged:
    problem, drop_in = report.get("right_for_problem"), report.get("drop_in")
    if report and code is not None and (code == 0) != problem:
        trouble = f"exit code {code} where right for the problem is {problem}"
    stages = report.get("stages", [])
    refused = next((stage for stage in stages if not stage["passed"]), {"name": "", "detail": ""})
    in_stages = sum(stage["seconds"] for stage in stages)
    judged = Judged(
        name=file.name,
        kind=file.kind,
        right=file.right,
        claim=str(file.claim),
        problem=problem,
        drop_in=drop_in,
        agrees=False,
        refused_at=refused["name"],
        detail=refused["detail"][:300],
        code=code,
        trouble=trouble,
        in_stages=round(in_stages, 3),
        outside=round(took - in_stages, 3),
        left=tuple(left),
        seconds={stage["name"]: round(stage["seconds"], 3) for stage in stages},
        refused=[stage["name"] for stage in stages if not stage["passed"]],
    )
    return _compared(file, judged)


def _compared(file: GateFile, judged: Judged) -> Judged:
    """The same beside what is true of the file now."""
    if judged.problem is None or judged.drop_in is None:
        agrees = judged.code == 2 and file.ends_early
    else:
        agrees = file.meets(problem=judged.problem, drop_in=judged.drop_in)
    agrees = agrees and not judged.trouble and not judged.left
    return replace(judged, kind=file.kind, right=file.right, claim=str(file.claim), agrees=agrees)


def _left_running(mark: str) -> list[str]:
    """Command lines of processes that have the mark in their environment some seconds later, which end here."""
    deadline = time.monotonic() + _END_SECONDS
    while (found := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for number in found:
        os.kill(number, signal.SIGKILL)
    return list(found.values())


def _marked(mark: str) -> dict[int, str]:
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / "cmdline").read_text(errors="replace").replace("\0", " ")
                if mark.encode() in (folder / "environ").read_bytes() or Path(mark).name in line:
                    found[int(folder.name)] = line[:200]
            except OSError:
                continue
    return found


def _left_on_disk(mark: str) -> list[str]:
    """Paths of files with the mark in their name, which are removed here."""
    found = [path for folder in _LEFT_FILES for path in sorted(Path(folder).glob(f"*{mark}*"))]
    for path in found:
        path.unlink()
    return [str(path) for path in found]


def print_table(judged: Iterable[Judged]) -> None:
    """Counts and seconds by class, then every disagreement, and those that are known and are none any more."""
    judged = list(judged)
    print("| files | class | judged | as they should be | refused first at | seconds in stages | outside of them |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for right in (False, True):
        for kind in dict.fromkeys(one.kind for one in judged if one.right is right):
            _print_row("right" if right else "wrong", kind, [o for o in judged if o.kind == kind and o.right is right])
        _print_row("right" if right else "wrong", "all", [one for one in judged if one.right is right])
    for one in judged:
        if not one.agrees:
            verdicts = f"problem {one.problem}, drop-in {one.drop_in}, exit code {one.code}"
            print(f"- {one.kind}: {one.name} ({'right' if one.right else 'wrong'}: {one.claim}): {verdicts}", end="")
            print(f"; {one.refused_at}: {one.detail}" if one.refused_at else "", end="")
            print(f"; {one.trouble}" if one.trouble else "", end="")
            print(f"; left: {', '.join(one.left)}" if one.left else "", end="")
            print("; known" if one.name in KNOWN_DISAGREEMENTS else "")
        elif one.name in KNOWN_DISAGREEMENTS:
            print(f"- {one.kind}: {one.name}: as it should be; it leaves KNOWN_DISAGREEMENTS")


def print_stages(judged: Sequence[Judged]) -> None:
    """Print how many wrong files each stage refuses, and the seconds that it takes of a right one."""
    wrong = [one for one in judged if not one.right]
    passed = [one for one in judged if one.right and not one.refused]
    print("| stage | refuses, of " + f"{len(wrong)} wrong files | refuses alone | seconds, median |")
    print("| --- | --- | --- | --- |")
    for name in dict.fromkeys(name for one in judged for name in one.seconds):
        found = [one for one in wrong if name in one.refused]
        alone = sum(len(one.refused) == 1 for one in found)
        seconds = [one.seconds[name] for one in passed if name in one.seconds]
        print(f"| {name} | {len(found)} | {alone} | {statistics.median(seconds) if seconds else math.nan:.3f} |")


def _print_row(what: str, kind: str, judged: Sequence[Judged]) -> None:
    if not judged:
        return
    stages: dict[str, int] = {}
    for one in judged:
        if one.refused_at:
            name = one.refused_at.split(",")[0]
            stages[name] = stages.get(name, 0) + 1
    most = sorted(stages.items(), key=lambda item: -item[1])
    first = ", ".join(f"{name} {count}" for name, count in most[:_MOST_STAGES])
    if len(most) > _MOST_STAGES:
        first += f", others {sum(count for _, count in most[_MOST_STAGES:])}"
    agree = sum(one.agrees for one in judged)
    inside, outside = (_median([getattr(one, name) for one in judged]) for name in ("in_stages", "outside"))
    print(f"| {what} | {kind} | {len(judged)} | {agree} | {first} | {inside:.1f} | {outside:.1f} |")


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def main(
    kind: Annotated[list[str] | None, typer.Option("--class", help="Only files of this class; repeatable.")] = None,
    name: Annotated[list[str] | None, typer.Option(help="Only files with this in their name; repeatable.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="The number of checks that run at a time.")] = 1,
    results: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Results by name, kept with those that are in it.")
    ] = None,
    together: Annotated[bool, typer.Option(help="By tunebench.check in one process.")] = False,
    here: Annotated[bool, typer.Option(help="Without the boundary, one after the other.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    seed: Annotated[int | None, typer.Option(help="Of the questions. Default: a new one.")] = None,
    box: Annotated[Box, typer.Option(help="The box that each file runs in.")] = Box.AUTO,
    again: Annotated[bool, typer.Option(help="Only what the file of results lacks, or what disagreed there.")] = False,
) -> None:
    """Judge files whose truth is known, and print what the gate got right by class."""
    candidates = [*ON_CUDA, *filter(runs_on_cuda, FILES)] if device != "cpu" else list(FILES)
    known: dict[str, Judged] = {}
    if results is not None and results.exists():
        read = [Judged(**one) for one in json.loads(results.read_text(encoding="utf-8"))]
        files = {file.name: file for file in candidates}
        known = {one.name: _compared(files[one.name], one) for one in read if one.name in files}
    chosen = [
        file
        for file in candidates
        if (not kind or file.kind in kind)
        and (not name or any(part in file.name for part in name))
        and not (again and file.name in known and known[file.name].agrees)
        and not (here and file.kind in ALONE)
    ]

    how = judge_here if here else judge_together if together else judge
    draw = Draw.fresh() if seed is None else Draw(seed)
    print(f"seed {draw.seed}", file=sys.stderr)
    start_forkserver(PRELOAD)  # for those that are judged together

    def one(file: GateFile) -> Judged:
        with tempfile.TemporaryDirectory(prefix="gate-file-") as folder:
            judged = how(file, Path(folder), device, draw, box)
        expected = "as is known " if file.name in KNOWN_DISAGREEMENTS else ""
        agrees = "" if judged.agrees else f"DISAGREES {expected}"
        line = f"{agrees}{file.kind}: {file.name}: {judged.refused_at} {judged.trouble}"
        print(line, file=sys.stderr, flush=True)
        return judged

    with ThreadPoolExecutor(jobs) as pool:
        for judged in map(one, chosen) if here else pool.map(one, chosen):
            known[judged.name] = judged
            if results is not None:
                _write(results, known)
    wanted = {file.name for file in candidates if not kind or file.kind in kind}
    print_table(judged for name, judged in known.items() if name in wanted)
    print_stages([judged for name, judged in known.items() if name in wanted])


def _write(path: Path, judged: Mapping[str, Judged]) -> None:
    order = {file.name: number for number, file in enumerate([*ON_CUDA, *FILES])}
    ordered = sorted((one for name, one in judged.items() if name in order), key=lambda one: order[one.name])
    # What a stage says of a refusal is for people who look into a disagreement.
    rows = [asdict(replace(one, detail="") if one.agrees else one) for one in ordered]
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
