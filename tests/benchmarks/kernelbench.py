"""KernelBench's own evaluation of the five kernels: `python -m tests.benchmarks.kernelbench CHECKOUT`.

CHECKOUT is a checkout of KernelBench, with what its `eval.py` imports: numpy, pydantic, requests. For each kernel
its `eval_kernel_against_ref` gets the reference and a submission: the exported file, and a file that loads `ModelNew`
from tunebench. Both stand as they are: fp32, 5 seeds, 100 trials, a model as it is constructed, timed with gradients
enabled. Prints a table: the seeds that were correct, KernelBench's own times, and what its static checker says.
`--json FILE` is written verdict by verdict: the same command goes on after a cut-off.

Each submission has a process of its own. nvcc builds all of them side by side; evaluation takes turns. While a
reference makes its inputs on the CPU, which takes scalar_mul some ten seconds each time, another process has its turn.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Lock
from pathlib import Path
from queue import Empty
from typing import Annotated, Any

import torch
import typer
from tests.benchmarks.rows import Row, Rows

from tunebench.kernels.runtime.registry import kernel_names, load_model
from tunebench.studies.display.terminal import print_table
from tunebench.studies.request.measure import ExportRequest
from tunebench.studies.writing.export_command import export
from tunebench.tuner.errors import TunebenchError

SEEDS, TRIALS = 5, 100
"""What KernelBench's scripts ask for."""
_LOOK_SECONDS = 2.0
"""How often to look whether a process has died of its submission."""


_LETS_GO = """

from __main__ import without_turn

get_inputs = without_turn(get_inputs)
"""
"""What stands behind a reference's own text."""

_WAITS = "import tunebench\n\ntunebench.set_policy(wait=True)  # for the build, in the first call\n"
"""What a file that loads `ModelNew` begins with: else the reference would serve the first calls."""

_turns: list[Lock] = []
"""What this process waits for before it uses the GPU."""


def without_turn(get_inputs: Callable[[], Any]) -> Callable[[], Any]:
    """The function, letting others have this process's turn while it runs."""

    def run() -> Any:
        (turn,) = _turns
        torch.cuda.synchronize()
        turn.release()
        try:
            return get_inputs()
        finally:
            turn.acquire()

    return run


@dataclass(frozen=True)
class Submission:
    """A file in KernelBench's form.

    Attributes:
        form: of the kernel, for people.
        reference: the text of the problem that it solves.
        bench: the ratio to eager that tunebench recorded for its configuration, with its interval.
    """

    kernel: str
    form: str
    text: str
    reference: str
    bench: list[float] | None = None


@dataclass(frozen=True)
class Verdict:
    """What KernelBench says.

    Attributes:
        correct: of `SEEDS`.
        reference_ms, new_ms: means; None where it measured none.
        refused, warned: by its static checker.
        largest_difference: from eager, of the seeds that were wrong.
        error: what ended it.
    """

    kernel: str
    form: str
    correct: int
    reference_ms: float | None
    new_ms: float | None
    refused: list[str]
    warned: list[str]
    bench: list[float] | None
    largest_difference: float | None = None
    error: str = ""


def submissions(kernels: list[str], *, any_source: bool, exported_only: bool) -> list[Submission]:
    """The exported files, in both of their forms where there are two, and the files that load `ModelNew`."""
    found = []
    for kernel in kernels:
        made = export(ExportRequest(kernel, any_source=any_source))
        bench = made.evidence.result.speedups.get("reference")
        reference = load_model(kernel).kernel.reference().path.read_text(encoding="utf-8") + _LETS_GO
        found.append(Submission(kernel, "exported", made.text, reference, bench))
        if "Two forms" in made.text:
            text = made.text.replace("\nBY_KERNEL = True", "\nBY_KERNEL = False")
            found.append(Submission(kernel, "exported, eager's order", text, reference))
        if not exported_only:
            text = f"{_WAITS}from tunebench.kernels.{kernel}.model import ModelNew\n"
            found.append(Submission(kernel, "ModelNew", text, reference))
    return found


def evaluate(checkout: Path, submission: Submission, folder: str, turn: Lock, verdicts: Queue[Verdict]) -> None:
    """KernelBench's evaluation, in a process of its own."""
    _turns.append(turn)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            verdict = evaluated(checkout, submission, folder, turn)
    except Exception as error:  # noqa: BLE001 - whatever a submission or KernelBench raises is a row
        none = (0, None, None, [], [], submission.bench)
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error}".splitlines()[0] + f" ({Path(where.filename).name}:{where.lineno})"
        verdict = Verdict(submission.kernel, submission.form, *none, error=said)
    verdicts.put(verdict)


def evaluated(checkout: Path, submission: Submission, folder: str, turn: AbstractContextManager[object]) -> Verdict:
    """What KernelBench says, in this process.

    Args:
        folder: for what the submission builds.
        turn: held while the GPU is used.

    Raises:
        Exception: whatever the submission or KernelBench raises.
    """
    sys.path.insert(0, str(checkout / "src"))
    from kernelbench import eval as kernelbench  # type: ignore[import-not-found]
    from kernelbench.kernel_static_checker import validate_kernel_static  # type: ignore[import-not-found]

    _, refused, warned = validate_kernel_static(submission.text, backend="cuda", precision="fp32")
    kernelbench.load_custom_model(submission.text, {}, folder)  # builds, while others have their turn
    device = torch.device("cuda:0")
    with turn:
        result = kernelbench.eval_kernel_against_ref(
            submission.reference,
            submission.text,
            num_correct_trials=SEEDS,
            num_perf_trials=TRIALS,
            measure_performance=True,
            build_dir=folder,
            device=device,
        )
        new = result.runtime if result.correctness else _timed(kernelbench, submission, folder, device)
    told = result.metadata
    return Verdict(
        submission.kernel,
        submission.form,
        correct=int(told.get("correctness_trials", "(0").strip("(").split()[0]),
        reference_ms=result.ref_runtime,
        new_ms=new,
        refused=refused,
        warned=warned,
        bench=submission.bench,
        largest_difference=max(map(float, told["max_difference"])) if "max_difference" in told else None,
        error=str(told.get("runtime_error", told.get("compilation_error", ""))),
    )


def _timed(kernelbench: Any, submission: Submission, folder: str, device: torch.device) -> float:
    """A submission's time where it was not within the tolerance and KernelBench did not take it: by its own clock."""
    context: dict[str, Any] = {}
    _, get_init_inputs, get_inputs = kernelbench.load_original_model_and_inputs(submission.reference, context)
    model = kernelbench.load_custom_model(submission.text, context, folder)(*get_init_inputs()).to(device)
    inputs = [value.to(device) if isinstance(value, torch.Tensor) else value for value in get_inputs()]
    clock: Callable[..., list[float]] = kernelbench.timing.get_timing_function("cuda_event")
    times = clock(model, inputs, num_trials=TRIALS, verbose=False, device=device)
    mean: float = kernelbench.timing.get_timing_stats(times, device=device)["mean"]
    return mean


def print_verdicts(verdicts: list[Verdict]) -> None:
    """The table."""
    rows = [
        (
            verdict.kernel,
            verdict.form,
            f"{verdict.correct}/{SEEDS}",
            "" if verdict.reference_ms is None else f"{verdict.reference_ms:.3g}",
            "" if verdict.new_ms is None else f"{verdict.new_ms:.3g}",
            "" if not verdict.reference_ms or not verdict.new_ms else f"{verdict.reference_ms / verdict.new_ms:.2f}",
            "" if verdict.bench is None else f"{verdict.bench[0]:.2f}",
            "; ".join([*verdict.refused, *(f"({warning})" for warning in verdict.warned)]) or "accepted",
            verdict.error or ("" if verdict.largest_difference is None else f"off by {verdict.largest_difference:.2g}"),
        )
        for verdict in verdicts
    ]
    head = ("kernel", "file", "correct", "eager ms", "new ms", "ratio", "bench", "static checker", "note")
    print_table(head, rows)


def main(
    checkout: Annotated[Path, typer.Argument(help="A checkout of KernelBench.")],
    exported: Annotated[bool, typer.Option("--exported", help="The exported files alone.")] = False,
    kernel: Annotated[list[str] | None, typer.Option(help="Repeatable. Default: all five.")] = None,
    any_source: Annotated[bool, typer.Option("--any-source", help="As in tunebench export.")] = False,
    file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the verdicts there too.")] = None,
) -> None:
    """Evaluate the exported files and the five `ModelNew` with KernelBench."""
    if not (checkout / "src" / "kernelbench" / "eval.py").exists():
        raise typer.BadParameter(f"{checkout}: no src/kernelbench/eval.py; name a checkout of KernelBench")
    if not torch.cuda.is_available():
        raise typer.BadParameter("KernelBench evaluates on a GPU, and there is none here")
    try:
        cases = submissions(kernel or kernel_names(), any_source=any_source, exported_only=exported)
    except TunebenchError as error:
        raise typer.BadParameter(str(error)) from error
    with tempfile.TemporaryDirectory() as folder, Rows(file, ("kernel", "form"), _line) as rows:
        while missing := [case for case in cases if not rows.has(case.kernel, case.form)]:
            for verdict in evaluate_all(checkout, missing, Path(folder)):
                rows.add(asdict(verdict))
    names = [one.name for one in fields(Verdict)]
    verdicts = [Verdict(**{name: row[name] for name in names}) for row in rows]
    order = [(case.kernel, case.form) for case in cases]
    verdicts.sort(key=lambda verdict: order.index((verdict.kernel, verdict.form)))
    print_verdicts(verdicts)


def evaluate_all(checkout: Path, cases: list[Submission], folder: Path) -> Iterator[Verdict]:
    """Verdicts as they come; where a process dies, its own and no more, since it may have died in its turn."""
    spawn = multiprocessing.get_context("spawn")
    turn, answers = spawn.Lock(), spawn.Queue()
    processes = {}
    for case in cases:
        own = folder / str(len(processes))  # KernelBench writes the name into a text between apostrophes
        own.mkdir(exist_ok=True)
        arguments = (checkout.resolve(), case, str(own), turn, answers)
        processes[case.kernel, case.form] = spawn.Process(target=evaluate, args=arguments)
    for process in processes.values():
        process.start()
    try:
        while processes:
            try:
                verdict: Verdict = answers.get(timeout=_LOOK_SECONDS)
            except Empty:
                dead = [case for case, process in processes.items() if process.exitcode]
                if not dead:
                    continue
                code = processes[dead[0]].exitcode
                yield Verdict(*dead[0], 0, None, None, [], [], None, error=f"its process ended with {code}")
                return
            processes.pop((verdict.kernel, verdict.form))
            yield verdict
    finally:
        for process in processes.values():
            process.terminate()


def _line(row: Row) -> str:
    times = ", ".join(f"{row[key]:.3g} ms" for key in ("reference_ms", "new_ms") if row[key] is not None)
    return f"{row['kernel']}, {row['form']}: {row['correct']}/{SEEDS} {times} {row['error']}"


if __name__ == "__main__":
    typer.run(main)
