"""What a study builds ahead, and how that ends."""

from __future__ import annotations

import threading
from pathlib import Path

from table_evaluator import AtOnce
from tests.sample_kernel import WriteKernel

from tunebench.tuner.build import Build
from tunebench.tuner.compile import building
from tunebench.tuner.compile.building import BuildQueue
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.device import find_device
from tunebench.tuner.kernel import Mode
from tunebench.tuner.study.evaluate import Subject
from tunebench.tuner.variant import Variant


class _Waits(AtOnce):
    """A compiler whose builds wait for a word; as processes of their own they are another compiler's."""

    def __init__(self, word: threading.Event, begun: threading.Semaphore, made: list[str], place: str = "here") -> None:
        self._word, self._begun, self._made, self._place = word, begun, made, place

    def apart(self) -> _Waits:
        """The other compiler."""
        return _Waits(self._word, self._begun, self._made, "apart")

    def compile(self, variant: Variant) -> Build:
        """An empty build, once the word is given."""
        self._made.append(self._place)
        self._begun.release()
        assert self._word.wait(60)
        return super().compile(variant)


def test_nobody_waits_in_the_end_for_builds_that_are_processes(write_kernel: WriteKernel, tmp_path: Path) -> None:
    factory = write_kernel()
    kernel, device = factory.kernel, find_device("cpu")
    subject = Subject.prepare(kernel, factory, kernel.reference(), Mode.EVAL, device)
    space = kernel.space.enumerate(subject.problem, device)
    word, begun, made = threading.Event(), threading.Semaphore(0), list[str]()
    queue = BuildQueue(_Waits(word, begun, made), BuildCache(tmp_path), 4, apart=True)
    waited: list[building.Building] = []
    first, *others = (queue.submit(kernel, space[number], subject.problem, device) for number in range(0, 12, 4))
    for _ in range(3):
        assert begun.acquire(timeout=60)
    assert sorted(made) == ["apart", "apart", "here"]
    for one in (first, *others):
        one.wait = lambda one=one: waited.append(one)  # type: ignore[method-assign, misc]
    queue.close()
    word.set()
    assert waited == [first]
    assert all(one.result() for one in (first, *others))
