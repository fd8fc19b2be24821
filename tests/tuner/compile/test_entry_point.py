"""The one call of the driver, by a library of g++'s in the driver's place that keeps what it is given."""

import ctypes
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tunebench.tuner import tensor_map
from tunebench.tuner.compile.arguments import Arguments
from tunebench.tuner.compile.entry_point import EntryPoint
from tunebench.tuner.errors import LaunchError
from tunebench.tuner.signature import declarations, signature_of
from tunebench.tuner.tensor_map import MapLayout, TensorMap

DECLARED = (
    'extern "C" __global__ void k(bool last, double* to, float s, long long n, char c, const float* none, '
    "const __grid_constant__ TensorMap map);"
)
LAYOUT = MapLayout(8, (24, 5, 7), (48, 4096), (8, 2, 1), 64)
DRIVER = r"""
#include <cstring>
struct Configuration { unsigned grid[3], block[3], shared; void* stream; void* attributes; unsigned count; };
struct Map { unsigned long long address, sizes[3], strides[2]; unsigned box[3], steps[3], type, rank, swizzle; };
struct Seen { Configuration configuration; double s; long long n; char last, c; const float* none; Map map; };
extern "C" {
// A kernel as the driver's own stubs read it: a place for each parameter. It writes to the memory it is given.
void k(void** places, const Configuration* configuration) {
    Seen seen{};
    memcpy(&seen.configuration, configuration, sizeof seen.configuration);
    seen.last = *(bool*)places[0];
    double* to = *(double**)places[1];
    seen.s = *(float*)places[2];
    seen.n = *(long long*)places[3];
    seen.c = *(char*)places[4];
    seen.none = *(const float**)places[5];
    seen.map = *(const Map*)places[6];
    memcpy(to, &seen, sizeof seen);
}
int cuTensorMapEncodeTiled(void* map, unsigned type, unsigned rank, void* address, const unsigned long long* sizes,
                           const unsigned long long* strides, const unsigned* box, const unsigned* steps,
                           int interleave, unsigned swizzle, int promotion, int fill) {
    if ((unsigned long long)map % 64 || (unsigned long long)address % 16 || rank != 3 || interleave || fill) return 1;
    Map made{(unsigned long long)address, {}, {}, {}, {}, type, rank, swizzle};
    memcpy(made.sizes, sizes, sizeof made.sizes);
    memcpy(made.strides, strides, sizeof made.strides);
    memcpy(made.box, box, sizeof made.box);
    memcpy(made.steps, steps, sizeof made.steps);
    memcpy(map, &made, sizeof made);
    return 0;
}
int cuLaunchKernelEx(const Configuration* configuration, void* function, void** places, void** extra) {
    if (extra) return 1;
    if (configuration->shared > 1000) return 700;
    ((void (*)(void**, const Configuration*))function)(places, configuration);
    return 0;
}
}
"""


class Map(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64), ("sizes", ctypes.c_uint64 * 3), ("strides", ctypes.c_uint64 * 2),
        ("box", ctypes.c_uint * 3), ("steps", ctypes.c_uint * 3),
        *((name, ctypes.c_uint) for name in ("type", "rank", "swizzle")),
    )  # fmt: skip


class Seen(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint * 3) for name in ("grid", "block")), ("shared", ctypes.c_uint),
        *((name, ctypes.c_size_t) for name in ("stream", "attributes")), ("count", ctypes.c_uint),
        ("s", ctypes.c_double), ("n", ctypes.c_longlong), *((name, ctypes.c_char) for name in ("last", "c")),
        ("none", ctypes.c_size_t), ("map", Map),
    )  # fmt: skip


@pytest.fixture(scope="module")
def entry_point(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EntryPoint]:
    folder: Path = tmp_path_factory.mktemp("driver")
    (folder / "driver.cc").write_text(DRIVER)
    subprocess.run(["g++", "-shared", "-fPIC", "driver.cc", "-o", "driver.so"], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "driver.so"))
    call: Callable[..., Any] = library.cuLaunchKernelEx
    call.argtypes, call.restype = (ctypes.c_void_p,) * 4, ctypes.c_int  # type: ignore[attr-defined]
    function = ctypes.cast(library.k, ctypes.c_void_p).value
    assert function is not None
    signature = signature_of(declarations([DECLARED])["k"], {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_map, "_driver", lambda: library)
        yield EntryPoint(function, Arguments(signature, torch.device("cpu")), call)
    tensor_map.encoded_map.cache_clear()


def aligned() -> torch.Tensor:
    memory = torch.zeros(4, dtype=torch.float64)
    return memory[-memory.data_ptr() % 16 // 8 :]


MAP = TensorMap(aligned(), LAYOUT)


def launched(entry_point: EntryPoint, n: int, s: float = 0.5, stream: int = 0, shared: int = 0) -> Seen:
    to = torch.zeros(64, dtype=torch.float64)
    assert entry_point.launch((n % 7 + 1, 2), 64, (True, to, s, n, -3, None, MAP), shared, stream) == 0
    return Seen.from_buffer_copy(bytes(to.untyped_storage().tolist()))


def test_the_driver_reads_what_python_gave(entry_point: EntryPoint) -> None:
    seen = launched(entry_point, -(2**40), stream=2**63 + 5, shared=96)
    assert (tuple(seen.grid), tuple(seen.block), seen.shared) == ((-(2**40) % 7 + 1, 2, 1), (64, 1, 1), 96)
    assert (seen.stream, seen.attributes, seen.count) == (2**63 + 5, 0, 0)
    assert (seen.last, seen.s, seen.n, seen.c, seen.none) == (b"\1", 0.5, -(2**40), b"\xfd", 0)


def test_the_copy_engines_view_of_a_tensor_is_the_drivers(entry_point: EntryPoint) -> None:
    map_ = launched(entry_point, 1).map
    assert (map_.address, tuple(map_.sizes), tuple(map_.strides)) == (
        MAP.tensor.data_ptr(),
        LAYOUT.sizes,
        LAYOUT.strides,
    )
    assert (tuple(map_.box), tuple(map_.steps), map_.type, map_.rank, map_.swizzle) == (LAYOUT.box, (1, 1, 1), 4, 3, 2)


def test_an_address_that_no_map_can_begin_at(entry_point: EntryPoint) -> None:
    to = torch.zeros(64, dtype=torch.float64)
    with pytest.raises(LaunchError, match="the driver makes no tensor map of"):
        entry_point.launch(1, 1, (False, to, 1.0, 1, 1, None, TensorMap(aligned()[1:], LAYOUT)), 0, 0)


def test_a_number_beyond_its_type_is_infinite(entry_point: EntryPoint) -> None:
    assert launched(entry_point, 1, s=-1e300).s == float("-inf")


def test_the_drivers_status_is_handed_on(entry_point: EntryPoint) -> None:
    to = torch.zeros(64, dtype=torch.float64)
    assert entry_point.launch(1, 1, (False, to, 1.0, 1, 1, None, MAP), 1001, 0) == 700


def test_no_such_grid(entry_point: EntryPoint) -> None:
    to = torch.zeros(64, dtype=torch.float64)
    for blocks, threads, shared in ((-1, 1, 0), (2**32, 1, 0), (1, 1, -1)):
        with pytest.raises(LaunchError, match="launch of 'k' with grid"):
            entry_point.launch(blocks, threads, (False, to, 1.0, 1, 1, None, MAP), shared, 0)


@pytest.mark.slow
def test_threads_that_launch_at_the_same_time_have_memory_of_their_own(entry_point: EntryPoint) -> None:
    wrong: list[int] = []

    def launch_many(first: int) -> None:
        for n in range(first, first + 500):
            seen = launched(entry_point, n, stream=n)
            if (seen.n, seen.stream, seen.grid[0]) != (n, n, n % 7 + 1):
                wrong.append(n)

    threads = [threading.Thread(target=launch_many, args=(1000 * number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
