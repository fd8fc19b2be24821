"""Fixtures of all tests: a small kernel of one's own, written as a user would, commands, processes, a build cache."""

import math
import os
import sys
from collections.abc import Iterator
from multiprocessing import forkserver, set_forkserver_preload
from pathlib import Path

import pytest
import torch
from command_line import CommandLine
from quick_builds import VARIABLE as QUICK_BUILDS
from sample_kernel import MODEL, REFERENCE, SOURCE, WriteKernel
from short_studies import VARIABLE
from warm_process import warm_server

from tunebench.kernels.runtime.choices_file import load_choices
from tunebench.kernels.runtime.decision import forget_plans
from tunebench.kernels.runtime.policy import Policy, set_accuracy, set_policy
from tunebench.kernels.runtime.registry import import_model
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.checking import PRELOAD
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.errors import CompilerMissingError
from tunebench.tuner.fork_server import in_order
from tunebench.tuner.result import Stage

TESTS = Path(__file__).parent


@pytest.fixture
def write_kernel(tmp_path: Path) -> WriteKernel:
    """Writes the sample kernel's folder, with text replaced as the test asks, and loads its model."""
    count = 0

    def write(
        source: dict[str, str] | None = None,
        model: dict[str, str] | None = None,
        reference: dict[str, str] | None = None,
    ) -> type[TunedModule]:
        nonlocal count
        count += 1
        folder = tmp_path / f"weigh{count}" / "weigh"
        folder.mkdir(parents=True)
        parts = {"weigh.cu": (SOURCE, source), "model.py": (MODEL, model), "reference.py": (REFERENCE, reference)}
        for name, (original, changes) in parts.items():
            text = original
            for old, new in (changes or {}).items():
                assert old in text
                text = text.replace(old, new)
            (folder / name).write_text(text, encoding="utf-8")
        return import_model(str(folder))

    return write


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Runs commands in this process."""
    return CommandLine(monkeypatch, capsys)


@pytest.fixture(scope="module")
def short_studies() -> Iterator[None]:
    """Studies whose finalists and winner are asked little, and which leave no copy for Optuna's tools.

    For tests of their course. What is asked is tested in `tests/tuner/gate`, the winner's last check in
    `tests/tuner/study/test_confirm_winner.py`, and the copy in `tests/db/upkeep`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "1")
        patch.setattr("tunebench.studies.tuning.tune.publish", lambda *_, **__: None)
        patch.setattr("tunebench.studies.tuning.tune._confirmation", lambda *_: lambda *_: Stage("boundary", True, 0.0))
        yield


@pytest.fixture(scope="module")
def quick_builds() -> Iterator[None]:
    """g++ without optimisation, for tests that ask what a kernel computes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(QUICK_BUILDS, "1")
        yield


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's own database or build cache, and no decision in its process is the clock's:
    none about what serves a call, and none that a variant is hopelessly slow."""
    monkeypatch.setattr("tunebench.tuner.timing.measure.HOPELESS", math.inf)
    set_policy(Policy.RECORDED, wait=True)
    set_accuracy("tolerance")
    load_choices()
    monkeypatch.setenv("TUNEBENCH_DB", str(tmp_path / "own" / "tunebench.db"))
    # Where tests run on several workers each has it, and tables are folded to it.
    monkeypatch.delenv("COLUMNS", raising=False)
    (tmp_path / "own").mkdir()
    forget_plans()


@pytest.fixture(scope="session", autouse=True)
def one_server() -> Iterator[None]:
    """Whichever test starts the server that processes are forked from, it has imported what those of all tests need."""
    set_forkserver_preload(
        in_order(
            [
                *(
                    "tunebench.studies.tuning.tune",
                    *PRELOAD,
                    "tunebench.studies.checking.compare",
                    f"tunebench.studies.writing.new.{'write_new' if torch.cuda.is_available() else 'make'}",
                ),
                *("database_process", "short_studies", "quick_builds"),
            ]
        )
    )
    ensure_running = forkserver.ensure_running

    def with_tests() -> None:
        """Start it where it finds the tests' own modules."""
        with pytest.MonkeyPatch.context() as environment:
            ours = [one for one in sys.path if Path(one).is_relative_to(TESTS)]
            environment.setenv(
                "PYTHONPATH", os.pathsep.join([*ours, os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
            )
            ensure_running()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multiprocessing.set_forkserver_preload", lambda _: None)
        patch.setattr(forkserver, "ensure_running", with_tests)
        yield


@pytest.fixture(scope="session")
def nvrtc() -> NvrtcCompiler:
    """NVRTC; what needs it is skipped where there is none."""
    try:
        NvrtcCompiler().version()
    except CompilerMissingError as missing:
        pytest.skip(str(missing))
    return NvrtcCompiler()


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a process from which commands are forked, which then need not import torch."""
    with warm_server(tmp_path_factory.mktemp("warm") / "socket") as place:
        yield place


@pytest.fixture(scope="session", autouse=True)
def short_confirmation() -> None:
    """What is tested is that winners are confirmed, not how well: a busy CPU would take all the time there is."""
    os.environ["TUNEBENCH_CONFIRM_SECONDS"] = "0.2"


@pytest.fixture(scope="session", autouse=True)
def shared_builds(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One build cache for the whole session, all its workers included: the same variants are compiled once."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    os.environ["TUNEBENCH_CACHE"] = str(folder / "builds")
