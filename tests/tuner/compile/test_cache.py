"""The build cache: one compilation a variant, complete keys, corrupt entries put aside."""

from pathlib import Path

import pytest

from tunebench.tuner.build import Build
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.compile.cpu.compiler import CpuCompiler
from tunebench.tuner.variant import KernelSource, Variant

TEXT = 'extern "C" __global__ void add(float* c) { c[threadIdx.x] += amount; }'


class CountingCompiler(CpuCompiler):
    """The CPU compiler, counting how often it is really called."""

    def __init__(self) -> None:
        super().__init__()
        self.compiled = 0
        self.extra: tuple[str, ...] = ()

    def compile(self, variant: Variant) -> Build:
        self.compiled += 1
        return super().compile(variant)

    def flags(self, variant: Variant) -> tuple[str, ...]:
        return super().flags(variant) + self.extra


def variant(amount: int = 1, headers: dict[str, str] | None = None) -> Variant:
    source = KernelSource("add", TEXT, ("add",), headers or {})
    return Variant(source, f"constexpr int amount = {amount};\n", "x86_64")


def test_a_second_request_is_served_from_the_cache(tmp_path: Path) -> None:
    compiler, cache = CountingCompiler(), BuildCache(tmp_path)
    first = cache.build(compiler, variant())
    again = BuildCache(tmp_path).build(compiler, variant())
    assert compiler.compiled == 1
    assert (first.cached, again.cached) == (False, True)
    assert (again.code, again.log, again.figures, again.seconds) == (
        first.code,
        first.log,
        first.figures,
        first.seconds,
    )


def test_every_input_is_part_of_the_key(tmp_path: Path) -> None:
    compiler, cache = CountingCompiler(), BuildCache(tmp_path)
    cache.build(compiler, variant())
    cache.build(compiler, variant(amount=2))
    cache.build(compiler, variant(headers={"unused.cuh": "// a header that could be included"}))
    compiler.extra = ("-DSOMETHING",)
    cache.build(compiler, variant())
    assert compiler.compiled == 4
    assert len(list(tmp_path.rglob("*.build"))) == 4


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "text"])
def test_a_corrupt_entry_is_put_aside_and_built_again(tmp_path: Path, damage: str) -> None:
    compiler, cache = CountingCompiler(), BuildCache(tmp_path)
    good = cache.build(compiler, variant())
    (path,) = tmp_path.rglob("*.build")
    content = path.read_bytes()
    flipped = content[:-1] + bytes([content[-1] ^ 1])
    path.write_bytes({"truncate": content[:-9], "flip": flipped, "empty": b"", "text": b"[1]\nx"}[damage])
    assert cache.build(compiler, variant()).code == good.code
    assert compiler.compiled == 2
    assert len(list(tmp_path.rglob("*.corrupt"))) == 1
    assert cache.build(compiler, variant()).cached
    assert not list(tmp_path.rglob("*.tmp"))
