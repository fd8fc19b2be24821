"""Which lines of product code are of functions that came since the layout: `python -m tests.line_account`.

Each added function is listed with the modules and definitions that exist for it alone (`module.py:Class.method`); what
is left is the code of what tunebench could do before. A module that an added function only made longer counts as
before, so that the rest is rather too large than too small. Four kernels have become instances of blocks: they are
counted with the blocks, and their lines of before are left out.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYERS = ("tuner", "db", "kernels", "studies")

BEFORE = 26_140 - 1_107
"""Lines of the four folders at the commit before the layout (2de7eae).

Left out are its benchmarks, which are tests now, and the `model.py` of the four kernels that are blocks now.
"""

CODE_BEFORE = 16_793
"""The lines of code among them."""

RUNTIME = "kernels/runtime"
_NO_CODE = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
)

ADDED: dict[str, tuple[str, ...]] = {
    "kernels inside compiled and exported programs (operators)": (
        *(f"{RUNTIME}/{name}.py" for name in ("operators", "outline", "traced_call")),
    ),
    "gradients; tracers, transforms, autocast and subclasses": (
        *(f"{RUNTIME}/gradients.py", f"{RUNTIME}/ordinary.py", f"{RUNTIME}/autocast.py"),
        *(f"{RUNTIME}/tuned_module.py:{name}" for name in ("TunedModule._note_backward", "computed_in")),
    ),
    "never slower than the reference: duels, policies, evidence": (
        *(f"{RUNTIME}/{name}.py" for name in ("duel", "policy", "decision", "served", "latest", "guards")),
        *(f"{RUNTIME}/selection.py:{name}" for name in ("Offer", "Known", "agreed")),
        f"{RUNTIME}/tuned_module.py:TunedModule._duel",
    ),
    "first use without a compiler's wait; builds ahead; bundles": (
        *("tuner/compile/nvrtc_program.py", "tuner/compile/nvrtc.py:NvrtcApart", "tuner/compile/bundle.py"),
        *(f"tuner/compile/building.py:{name}" for name in ("known_build", "shared_build", "_build_shared")),
        *("studies/ahead.py", "studies/cli/warm.py", "studies/cli/bundle.py", "studies/api.py:warm"),
        *("studies/api.py:bundle", "tuner/device.py:any_gpu"),
    ),
    "saved choices": (*(f"{RUNTIME}/{name}.py" for name in ("choices_file", "saving")), "tuner/typed_json.py"),
    "problems without evidence: counted, tuned later or at first sight": (
        *("db/queries/misses.py", "db/queries/rows.py:Missed", "db/queries/rows.py:MissRow"),
        *("db/schema/tables.py:Miss", "db/migrations/versions/0004_misses.py", f"{RUNTIME}/misses.py"),
        *(
            f"{RUNTIME}/on_sight.py",
            "studies/for_problem.py",
            "studies/cli/misses.py",
            "studies/cli/tune.py:_of_misses",
        ),
        *(f"studies/tables.py:{name}" for name in ("_print_misses", "_miss_values", "_miss_cells")),
        "studies/api.py:misses",
    ),
    "export as one file": ("studies/export", "studies/export_command.py", "studies/cli/export.py"),
    "kernels of one's own: axes, stock constraints, signatures, one file, errors with their place": (
        *(f"{RUNTIME}/axes.py", f"{RUNTIME}/folders.py", "tuner/constraints.py", "tuner/signature.py"),
        *("tuner/compile/arguments.py", "tuner/compile/entry_point.py", "tuner/users_code.py", "tuner/running_text.py"),
        *("tuner/compile/for_gpu.py", "studies/doctor.py:examine_kernel", "studies/doctor.py:_KernelFolder"),
        *("tuner/problem.py:Work.of_axes", "tuner/kernel.py:_work_of_axes", "tuner/kernel.py:Kernel.require_axes"),
        *("studies/tune.py:_gpu_refusal", "kernels/runtime/registry.py:is_kernel_file"),
        *("kernels/runtime/registry.py:place_of", "tuner/variant.py:Variant.signatures"),
        *(f"{RUNTIME}/tuned_module.py:{name}" for name in ("require_reference", "_copied")),
        *(
            f"{RUNTIME}/tuned_module.py:TunedModule.{name}"
            for name in ("__init_subclass__", "accepts_layout", "settings", "_in_order", "_signature", "_input_names")
        ),
        *("tuner/kernel.py:Kernel.is_one_file", "tuner/kernel.py:_require_forms"),
        *("studies/checking/on_kernel.py:_build_for_gpu", "tuner/study/evaluate.py:LocalEvaluator._own_code"),
    ),
    "kernels from a few attributes (blocks), and the four shipped ones that are such": (
        *("kernels/blocks", "kernels/shared/graph_function.py", "kernels/shared/images.py"),
        *(f"kernels/{name}/model.py" for name in ("scalar_mul", "conv_min_add_mul", "gemm_scale_bn")),
        *("kernels/gemm_sigmoid_residual/model.py", "kernels/shared/cudnn_graph.py:Function"),
    ),
    "`tunebench new`, and problems of KernelBench in a few lines": (
        *("studies/new", "studies/cli/new.py", "studies/kernelbench", "studies/targets.py"),
        *(f"{RUNTIME}/installed.py", "db/migrations/versions/0006_kernel_path.py"),
    ),
    "a gate that what it judges cannot reach: another process, what changed, what a source says": (
        *(f"tuner/gate/{name}" for name in ("boundary", "changes.py", "sources.py", "process_state.py")),
        "studies/checking/on_file.py",
    ),
    "a gate for whatever a model may return, which asks about the holes that its readers found": (
        *(f"tuner/gate/{name}.py" for name in ("values", "case", "truth", "float64", "gradients", "questions")),
        *("tuner/gate/on_streams.py", "tuner/gate/stages/callers.py", "tuner/gate/memory.py:PoisonedAllocations"),
        *(
            f"tuner/gate/stages/call_sequences.py:{name}"
            for name in (
                *("_written", "_each", "_edited", "_one_element", "_one_row", "_all_by_little", "_balanced"),
                *("_other_order", "_judge_each", "growth", "instances", "copies", "threads"),
            )
        ),
        *(f"tuner/gate/stages/sizes.py:{name}" for name in ("batches", "_Resizing", "_takes", "_ask_at")),
        *(f"tuner/gate/stages/inputs.py:{name}" for name in ("_drawn", "signed_zeros", "_lost_signs")),
        *(f"tuner/gate/stages/state.py:{name}" for name in ("settings", "_followed", "_differ")),
        *(f"tuner/gate/oracle.py:{name}" for name in ("_is_steady", "_plain", "_is_finite", "_answers_to_all")),
        *("tuner/gate/oracle.py:_one_for_all", "tuner/gate/stages/layouts.py:form", "tuner/gate/judge.py:judge_inputs"),
        *(f"tuner/gate/comparison.py:{name}" for name in ("_root_mean_square", "_beside_fills", "count_differing")),
        *(
            f"tuner/gate/distributions.py:{name}"
            for name in ("graded", "_growing", "_falling", "_eighths", "_offset", "_below", "zeros_among")
        ),
        *(f"tuner/reference.py:{name}" for name in ("Reference.numbers", "seed_generators", "literal_name")),
        *("tuner/reference.py:_literals", "tuner/reference.py:_constants"),
    ),
    "what a refusal is about, shown again; many files, modules of a program, one process that imports torch": (
        *("tuner/gate/refusal.py", "tuner/gate/reproduction.py", "studies/checking/script.py"),
        *("studies/checking/submissions.py", "studies/checking/on_modules.py", "studies/checking/telling.py"),
        *(f"tuner/gate/stage_log.py:{name}" for name in ("Listener", "about", "StageLog.ask", "StageLog.until")),
        *(f"studies/check.py:{name}" for name in ("_Check", "check_all", "_checks", "_Running", "_unasked")),
        *(f"studies/cli/check.py:{name}" for name in ("_check_one", "_check_many", "_reproduce")),
        *(f"tuner/isolation.py:IsolatedProcess.{name}" for name in ("begin", "step", "waited_for", "_running", "kill")),
        *("tuner/isolation.py:IsolatedProcess._closed_on_failure", "tuner/isolation.py:_Home"),
        "tuner/isolation.py:how_it_ended",
    ),
    "files compared across the boundary; winners judged there": (
        *("studies/compare_files.py", "tuner/study/confirm_winner.py", "studies/tune.py:_confirmation"),
        *("studies/tune.py:make_contender", "tuner/study/study.py:StudyRun._confirms"),
    ),
    "several devices and clusters, one process at a time on a GPU": (
        *(f"tuner/study/{name}.py" for name in ("executor", "ray_executor")),
        *("studies/on_ray.py", "studies/on_this_machine.py", "tuner/device_lock.py", "tuner/cores.py"),
        *("tuner/device.py:Device.model", "tuner/device.py:find_devices", "tuner/device.py:require_one_model"),
        *(f"studies/tune.py:{name}" for name in ("Resolved.device", "_devices", "make_executor", "environment_for")),
        *(f"tuner/study/worker.py:{name}" for name in ("WorkerEvaluator._alone", "_take_device", "_device_let_go_of")),
        *(f"tuner/study/study.py:StudyRun.{name}" for name in ("_ask_ahead", "_begin")),
        *("db/entries/study_log.py:study_of", "db/migrations/versions/0008_device_uuid.py"),
    ),
    "many studies as one queue, and ranges that were tested": (
        *("studies/sweep", "studies/cli/sweep.py", "tuner/study/pending.py", "db/queries/studies.py:conclusion"),
        *(f"studies/study_file.py:{name}" for name in ("read_study_files", "studies_in", "_combinations", "_values")),
        *(f"studies/ship.py:{name}" for name in ("RangeTest", "_with_range")),
        *(f"kernels/runtime/selection.py:{name}" for name in ("_serving", "_tests", "_of", "below", "neighbours")),
        *("kernels/runtime/shipped.py:NeighbourTest", "kernels/runtime/shipped.py:_with_range"),
    ),
    "accuracy as the user's choice; where a study's time went": (
        *("tuner/gate/accuracy.py", "tuner/study/account.py", "tuner/problem.py:Accuracy"),
    ),
    "what is known of a block's other kernels": (
        *("kernels/runtime/selection.py:Known._related", "kernels/runtime/shipped.py:related_files"),
        "tuner/space.py:SearchSpace.completed",
    ),
    "tools for agents, kernels listed and spaces described": (
        *("studies/mcp", "studies/spaces.py", "studies/cli/mcp.py", "studies/cli/kernels.py", "studies/cli/space.py"),
    ),
    "two git revisions against each other; what an edit left alone": ("studies/regress", "studies/cli/regress.py"),
    "sources in Triton": (
        *("tuner/compile/triton", "tuner/triton_source.py", "tuner/sources.py"),
        *("db/migrations/versions/0005_triton.py", "tuner/compile/compilers.py:BothCompilers"),
        "tuner/build.py:DriverLaunch",
        *(f"tuner/kernel.py:Kernel.{name}" for name in ("source", "languages", "languages_in", "_source_in")),
    ),
    "products of few rows, and corrections in eight bits": (
        "kernels/shared/stream_product.py",
        *(f"kernels/shared/parts_product.py:{name}" for name in ("_runs_corrections", "_cpu_multiplies_e4m3")),
        "kernels/shared/parts_product.py:_small_terms",
    ),
    "models and inputs in half types": ("tuner/reference.py:require_dtype",),
    "the public face": ("studies/api.py",),
    "several processes on one study": (
        *("db/entries/claims.py", "db/entries/study_log.py:StudyLog.claim", "db/entries/study_log.py:StudyLog.release"),
        *("tuner/study/study.py:StudyRun._catch_up", "tuner/study/study.py:StudyRun._learn"),
        *("db/upkeep/optuna_mirror.py:_alone", "db/upkeep/optuna_mirror.py:_storage_in"),
    ),
    "nothing lost: killed compilers and processes, whole files, closed or full outputs": (
        *("tuner/compile/processes.py", "tuner/scratch.py", "tuner/files.py", "db/queries/sql_process.py"),
        *("tuner/isolation.py:limit_output", "tuner/isolation.py:_pass_on", "tuner/isolation.py:without_main"),
        *(f"studies/cli/run.py:{name}" for name in ("_input_or_output", "_nobody_reads", "_abandon_output")),
        *(f"studies/cli/run.py:{name}" for name in ("_bug", "_keep", "_fill_closed_streams")),
        *("db/exchange/reading.py:_Unpacked", "db/exchange/formats/csv_table.py:_Lines"),
        *(f"db/exchange/formats/parquet.py:{name}" for name in ("_require_groups", "_text_bytes")),
        *(f"studies/dashboard.py:{name}" for name in ("only_for", "refusal", "_origin_of", "_copies_in")),
        *("tuner/compile/cache.py:BuildCache._why_not_kept", "db/upkeep/check.py:_programs"),
        *("db/upkeep/check.py:_program", "tuner/isolation.py:asked_again_if_killed"),
    ),
    "a look-up without SQLAlchemy, enumeration or time spent twice": (
        *("db/queries/look_up.py", "db/connection/location.py", "tuner/space.py:SearchSpace.admits"),
        *("kernels/runtime/registry.py:_digest_file", "tuner/kernel.py:Plan.once"),
    ),
    "a large database: listings that stream, reports with limits": (
        *("db/queries/trials.py:each_trial", "studies/cli/output.py:print_json_array"),
        "studies/report/gather.py:_with_room",
    ),
    "exports to standard output, how far they are, queries from standard input": (
        *("db/exchange/files.py:export_stream", "db/exchange/files.py:Written"),
        *(f"studies/cli/db/transfer.py:{name}" for name in ("progress_of", "_lines", "_bar")),
        "studies/cli/query.py:_standard_input",
    ),
    "studies listed, names completed, the command line's reference, tables that fit": (
        *("studies/cli/studies.py", "studies/cli/completion.py", "studies/cli/reference.py"),
        *(f"studies/tables.py:{name}" for name in ("StudyWithBest", "_print_studies", "_study_values", "_study_cells")),
        *("db/queries/trials.py:best_of_studies", "studies/progress.py:_Failures"),
        *(f"studies/terminal.py:{name}" for name in ("_table", "_widths", "_grown", "_beside", "_flowing")),
    ),
    "Optuna's samplers by name": (
        "tuner/search/strategies.py",
        *(f"tuner/search/filtered.py:{name}" for name in ("optuna_sampler_names", "optuna_sampler", "_make_sampler")),
    ),
    "versions and the kernel's commit in an environment": (
        *("tuner/versions.py", "tuner/environment.py:commit_of", "db/migrations/versions/0002_kernel_commit.py"),
        "db/migrations/versions/0003_cudnn_version.py",
    ),
}


Lines = set[tuple[Path, int]]


def account() -> dict[str, Lines]:
    """The lines of each added function; each line once, with the first that lists it."""
    counted: Lines = set()
    lines = {}
    for function, places in ADDED.items():
        lines[function] = {line for place in places for line in _lines_of(place)} - counted
        counted |= lines[function]
    return lines


def every_line() -> Lines:
    """All lines of the four folders' Python."""
    files = [file for layer in LAYERS for file in (ROOT / layer).rglob("*.py")]
    return {(file, number) for file in files for number in range(_length(file))}


def code(lines: Lines) -> int:
    """How many of these lines are code: neither empty nor a comment nor of a docstring."""
    of_code = {file: _code_of(file) for file in {file for file, _ in lines}}
    return sum(number in of_code[file] for file, number in lines)


def _code_of(file: Path) -> set[int]:
    text = file.read_text(encoding="utf-8")
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            found |= set(range(token.start[0] - 1, token.end[0]))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found -= set(range(node.lineno - 1, node.end_lineno or node.lineno))
    return found


def _length(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def _lines_of(place: str) -> Lines:
    """The lines of a folder, a module or a definition; none where it is gone."""
    name, _, definition = place.partition(":")
    path = ROOT / name
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.exists() else []
    if not definition or not files:
        return {(file, number) for file in files for number in range(_length(file))}
    node: ast.AST = ast.parse(path.read_text(encoding="utf-8"))
    for part in definition.split("."):
        found = [one for one in ast.iter_child_nodes(node) if getattr(one, "name", "") == part]
        if not found:
            return set()
        node = found[0]
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    return {(path, number) for number in range(first - 1, node.end_lineno or first)}


def table() -> str:
    """The account as Markdown."""
    added, every = account(), every_line()
    rest = every.difference(*added.values())
    rows = [*added.items(), ("**what tunebench could do before**", rest), ("all", every)]
    lines = [f"| {name} | {len(one):,} | {code(one):,} |" for name, one in rows]
    before = f"| before the layout | {BEFORE:,} | {CODE_BEFORE:,} |"
    return "\n".join(["| function | lines | of them code |", "| --- | --- | --- |", *lines, before])


if __name__ == "__main__":
    print(table())
