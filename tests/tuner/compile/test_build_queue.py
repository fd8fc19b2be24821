"""A study builds ahead, and waits in the end for what would outlive it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from table_evaluator import AtOnce
from tests.sample_kernel import WriteKernel

from tunebench.tuner.build import Build
from tunebench.tuner.compile import building
from tunebench.tuner.compile.building import BuildQueue
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.device import find_device
from tunebench.tuner.kernel import Mode
from tunebench.tuner.study.subject import Subject
from tunebench.tuner.variant import Variant

HERE, APART = "here", "apart"


class _Waits(AtOnce):
    """A compiler whose builds wait for the word of their place; those that are processes are another compiler's."""

    def __init__(
        self, words: Mapping[str, threading.Event], begun: threading.Semaphore, ended: list[str], place: str = HERE
    ) -> None:
        self._words, self._begun, self._ended, self._place = words, begun, ended, place
        self.is_apart = place == APART

    def apart(self) -> _Waits:
        """The other compiler."""
        return _Waits(self._words, self._begun, self._ended, APART)

    def compile(self, variant: Variant) -> Build:
        """An empty build, once the word is given."""
        self._begun.release()
        assert self._words[self._place].wait(60)
        self._ended.append(self._place)
        return super().compile(variant)


def test_nobody_waits_in_the_end_for_builds_that_are_processes(
    write_kernel: WriteKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "_CLOSE_SECONDS", 3600.0)
    factory = write_kernel()
    kernel, device = factory.kernel, find_device("cpu")
    subject = Subject.prepare(kernel, factory, kernel.reference(), Mode.EVAL, device)
    space = kernel.space.enumerate(subject.problem, device)
    words, begun, ended = {HERE: threading.Event(), APART: threading.Event()}, threading.Semaphore(0), list[str]()
    queue = BuildQueue(_Waits(words, begun, ended), BuildCache(tmp_path), workers=3, apart=True)
    builds = [queue.submit(kernel, space[number], subject.problem, device) for number in range(0, 12, 4)]
    for _ in builds:
        assert begun.acquire(timeout=60)
    closing = threading.Thread(target=queue.close, daemon=True)
    closing.start()
    words[HERE].set()
    closing.join(60)
    assert not closing.is_alive() and ended == [HERE]  # it has waited for the first, and not for the others
    words[APART].set()
    assert all(one.result() for one in builds) and ended == [HERE, APART, APART]
