"""What a command or a kernel's look-up brings into the process: nothing that takes longer than what was asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from processes import ended
from sample_results import ENVIRONMENT, STUDY, correct

from tunebench.db.connection.database import open_database
from tunebench.db.entries.study_log import open_study
from tunebench.kernels.runtime.registry import kernel_names, load_model
from tunebench.studies.tuning import PRELOAD

SLOW = {"torch", "numpy", "scipy", "optuna", "plotly", "alembic", "pebble", "pandas", "pyarrow"}
"""What reading results never needs."""

DATABASE = {"sqlalchemy", "alembic"}
INTERFACE = {"typer", "click", "rich", "plotly", "jinja2", "pydantic", "optuna", "scipy", "pandas", "pebble"}

RUN = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})), file=sys.stderr))
"""


def modules_after(code: str, environment: Mapping[str, str] | None = None, arguments: Sequence[str] = ()) -> set[str]:
    """The top-level modules that a new process has imported when it ends."""
    done = ended(sys.executable, "-c", RUN + code, *arguments, **(environment or {}))
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_the_process_that_has_files_checked_needs_no_torch() -> None:
    """Each of the processes that do has forked from a server that has it."""
    assert not modules_after("import tunebench.studies.checking.check, tunebench.studies.checking.script") & (
        SLOW - {"numpy"}
    )


BEGUN = """
from multiprocessing import forkserver
from tunebench.__main__ import _begin
server = lambda: vars(forkserver._forkserver)["_forkserver_pid"]
for arguments in ([], ["best"], ["tune", "--help"]):
    _begin(arguments)
    assert server() is None, arguments
_begin(["tune", "scalar_mul"])
assert server() is not None
"""


def test_the_server_of_a_tunes_workers_begins_before_the_command_is_read() -> None:
    assert not modules_after(BEGUN) & (SLOW | DATABASE | INTERFACE)


@pytest.mark.slow
def test_workers_need_neither_the_database_nor_what_prints() -> None:
    preloaded = "".join(f"import {name}\n" for name in PRELOAD)
    assert not modules_after(preloaded) & (DATABASE | {"typer", "click", "rich", "plotly", "jinja2"})


@pytest.fixture
def results(tmp_path: Path) -> str:
    """A database with a trial of a shipped kernel as it is now, whose digest this machine knows."""
    file = tmp_path / "results.db"
    digest = load_model("scalar_mul").kernel.digest
    with open_database(file) as database:
        for study in (STUDY, replace(STUDY, source_digest=digest)):
            open_study(database, study, ENVIRONMENT).record(correct(0, 1.0))
    return str(file)


COMMANDS = (
    *("--help", "doctor --help", "best", "best --json", "trials", "trials --csv", "show 1", "query SELECT-1"),
    *("db stats", "db check"),
)
ONE_AFTER_THE_OTHER = """
from tunebench.__main__ import main
for arguments, slow in json.loads(sys.argv[1]):
    sys.argv = ["tunebench", *arguments]
    try:
        main()
    except SystemExit as ending:
        assert not ending.code, arguments
    brought = {name.partition(".")[0] for name in sys.modules} & set(slow)
    assert not brought, (arguments, brought)
"""


@pytest.mark.slow
def test_reading_results_needs_no_torch(results: str) -> None:
    """Each command in the process of those before it: whichever brings something slow is named."""
    asked = []
    for command in COMMANDS:
        where = [] if "--help" in command else ["--db", results]
        asked.append(([word.replace("-1", " 1") for word in command.split()] + where, sorted(SLOW)))
    modules_after(ONE_AFTER_THE_OTHER, arguments=[json.dumps(asked)])


@pytest.mark.slow
def test_a_kernels_model_brings_neither_the_database_nor_the_interface() -> None:
    models = "".join(f"import tunebench.kernels.{name}.model\n" for name in kernel_names())
    assert not modules_after(f"import torch\n{models}") & (DATABASE | INTERFACE)


FORWARD = """
import torch
from tunebench.kernels.scalar_mul.model import ModelNew
model = ModelNew()
x = torch.rand(64, 64)
assert torch.equal(model(x, 2.0), x * 2.0)
(choice,) = model.choices.values()
assert choice.tier in ("default", "reference"), choice  # nobody measured it: the first call decides between the two
"""


@pytest.mark.slow
def test_a_forward_brings_neither_where_its_results_are_in_a_file(results: str, tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere.db", results):
        assert not modules_after(FORWARD, {"TUNEBENCH_DB": str(place)}) & (DATABASE | INTERFACE)


def test_the_package_itself_brings_nothing() -> None:
    assert not modules_after("import tunebench\n") & (SLOW | DATABASE | INTERFACE | {"numpy"})
