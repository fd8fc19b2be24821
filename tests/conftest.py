"""What pytest does before and after all tests; their fixtures are in `shared_fixtures.py`."""

import atexit
import compileall
import gc
import sys
from pathlib import Path
from typing import Any

import pytest
from hostile_count import tried

WRITES_NO_BYTECODE = sys.dont_write_bytecode
sys.dont_write_bytecode = False  # while the tests' modules are collected, which each worker would compile again
gc.disable()  # until they are: imports make little garbage, and looking for it takes a fifth of their seconds

LONG = (
    "test_documentation.py",
    "test_tutorial.py",
    "test_make.py",
    "test_recovery.py",
    "test_one_study.py",
    "test_cli.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """The product's bytecode, which dozens of processes read, also where the environment has Python write none.

    Who only deals the tests out to workers needs none of the fixtures, whose imports take seconds.
    """
    if not hasattr(config, "workerinput"):
        for layer in ("tuner", "db", "kernels", "studies"):
            compileall.compile_dir(Path(__file__).parents[1] / layer, quiet=2)
    if config.getoption("dist", "no") == "no" or config.option.collectonly:
        config.pluginmanager.import_plugin("shared_fixtures")


def pytest_collection_finish() -> None:
    """What there is by now stays for the whole run: no test's collection of garbage need look at it."""
    sys.dont_write_bytecode = WRITES_NO_BYTECODE  # a kernel that a test edits twice in a second would run its old one
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000)  # a tenth of the tests' seconds went into looking more often
    atexit.register(gc.unfreeze)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker's counts go to the run that it belongs to."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["hostile"] = dict(tried)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker has ended."""
    tried.update(getattr(node, "workeroutput", {}).get("hostile", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many hostile inputs were tried."""
    if tried:
        kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(tried.items()))
        terminalreporter.write_line(f"hostile inputs tried: {kinds}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files with the longest tests go first, so that no worker is left with one; tests marked `gpu` need one."""
    import torch

    items.sort(key=lambda item: item.path.name not in LONG)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
