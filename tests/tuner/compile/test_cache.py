"""The build cache: one compilation a variant, complete keys, corrupt entries put aside."""

import os
import subprocess
from collections.abc import Callable
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
    source = KernelSource("add", TEXT, headers or {})
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


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    compiler, cache = CountingCompiler(), BuildCache(tmp_path)
    cache.build(compiler, variant())
    (kept,) = tmp_path.rglob("*.build")
    ended = subprocess.Popen(["true"])
    ended.wait()
    left, living = (kept.with_name(f"tmp1.{process}.partial") for process in (ended.pid, os.getppid()))
    for path in (left, living):
        path.write_bytes(b"half")
        os.utime(path, (0, 0))
    kept.unlink()
    cache.build(compiler, variant())
    assert list(left.parent.glob("*.partial")) == [living]


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


def test_an_entry_of_another_variant_is_not_served(tmp_path: Path) -> None:
    """Under its name, with a digest that is right."""
    compiler, cache = CountingCompiler(), BuildCache(tmp_path)
    good = cache.build(compiler, variant())
    (mine,) = tmp_path.rglob("*.build")
    other = cache.build(compiler, variant(amount=2))
    (theirs,) = set(tmp_path.rglob("*.build")) - {mine}
    digest = theirs.name.split(".")[1]
    mine.unlink()
    theirs.replace(mine.with_name(f"{mine.name.split('.')[0]}.{digest}.build"))
    served = cache.build(compiler, variant())
    assert served.code == good.code != other.code
    assert compiler.compiled == 3


def test_what_is_kept_is_its_users_alone(tmp_path: Path) -> None:
    BuildCache(tmp_path / "builds").build(CountingCompiler(), variant())
    made = [tmp_path / "builds", *(tmp_path / "builds").rglob("*")]
    assert [oct(path.stat().st_mode & 0o777) for path in made] == ["0o700", "0o700", "0o600"]


def _open_to_all(folder: Path) -> None:
    folder.chmod(0o777)


def _open_inside(folder: Path) -> None:
    next(path for path in folder.iterdir()).chmod(0o770)


def _given_away(folder: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(folder, 12345, 12345)


@pytest.mark.parametrize("expose", [_open_to_all, _open_inside, _given_away])
def test_a_folder_that_others_can_write_to_is_neither_read_nor_written(
    tmp_path: Path, expose: Callable[[Path], None]
) -> None:
    compiler, folder = CountingCompiler(), tmp_path / "builds"
    BuildCache(folder).build(compiler, variant())
    expose(folder)
    before = sorted(folder.rglob("*"))
    with pytest.warns(RuntimeWarning, match=r"builds are not kept in .*: it, or a folder in it, is another user's or"):
        assert not BuildCache(folder).build(compiler, variant()).cached
    assert compiler.compiled == 2
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("how", ["writable", "link"])
def test_an_entry_that_others_could_have_written_is_not_run(tmp_path: Path, how: str) -> None:
    compiler, cache = CountingCompiler(), BuildCache(tmp_path)
    cache.build(compiler, variant())
    (path,) = tmp_path.rglob("*.build")
    if how == "writable":
        path.chmod(0o666)
    else:
        path.replace(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    assert not cache.build(compiler, variant()).cached
