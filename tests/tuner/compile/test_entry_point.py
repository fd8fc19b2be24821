"""The one call of the driver, by a library of g++'s in the driver's place that keeps what it is given."""

import ctypes
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tunebench.tuner.compile.arguments import Arguments
from tunebench.tuner.compile.entry_point import EntryPoint
from tunebench.tuner.errors import LaunchError
from tunebench.tuner.signature import declarations, signature_of

DECLARED = 'extern "C" __global__ void k(bool last, double* to, float s, long long n, char c, const float* none);'
DRIVER = r"""
#include <cstring>
struct Configuration { unsigned grid[3], block[3], shared; void* stream; void* attributes; unsigned count; };
struct Seen { Configuration configuration; double s; long long n; char last, c; const float* none; };
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
    memcpy(to, &seen, sizeof seen);
}
int cuLaunchKernelEx(const Configuration* configuration, void* function, void** places, void** extra) {
    if (extra) return 1;
    if (configuration->shared > 1000) return 700;
    ((void (*)(void**, const Configuration*))function)(places, configuration);
    return 0;
}
}
"""


class Seen(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint * 3) for name in ("grid", "block")), ("shared", ctypes.c_uint),
        *((name, ctypes.c_size_t) for name in ("stream", "attributes")), ("count", ctypes.c_uint),
        ("s", ctypes.c_double), ("n", ctypes.c_longlong), *((name, ctypes.c_char) for name in ("last", "c")),
        ("none", ctypes.c_size_t),
    )  # fmt: skip


@pytest.fixture(scope="module")
def entry_point(tmp_path_factory: pytest.TempPathFactory) -> EntryPoint:
    folder: Path = tmp_path_factory.mktemp("driver")
    (folder / "driver.cc").write_text(DRIVER)
    subprocess.run(["g++", "-shared", "-fPIC", "driver.cc", "-o", "driver.so"], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "driver.so"))
    call: Callable[..., Any] = library.cuLaunchKernelEx
    call.argtypes, call.restype = (ctypes.c_void_p,) * 4, ctypes.c_int  # type: ignore[attr-defined]
    function = ctypes.cast(library.k, ctypes.c_void_p).value
    assert function is not None
    signature = signature_of(declarations([DECLARED])["k"], {})
    return EntryPoint(function, Arguments(signature, torch.device("cpu")), call)


def launched(entry_point: EntryPoint, n: int, s: float = 0.5, stream: int = 0, shared: int = 0) -> Seen:
    to = torch.zeros(32, dtype=torch.float64)
    assert entry_point.launch((n % 7 + 1, 2), 64, (True, to, s, n, -3, None), shared, stream) == 0
    return Seen.from_buffer_copy(bytes(to.untyped_storage().tolist()))


def test_the_driver_reads_what_python_gave(entry_point: EntryPoint) -> None:
    seen = launched(entry_point, -(2**40), stream=2**63 + 5, shared=96)
    assert (tuple(seen.grid), tuple(seen.block), seen.shared) == ((-(2**40) % 7 + 1, 2, 1), (64, 1, 1), 96)
    assert (seen.stream, seen.attributes, seen.count) == (2**63 + 5, 0, 0)
    assert (seen.last, seen.s, seen.n, seen.c, seen.none) == (b"\1", 0.5, -(2**40), b"\xfd", 0)


def test_a_number_beyond_its_type_is_infinite(entry_point: EntryPoint) -> None:
    assert launched(entry_point, 1, s=-1e300).s == float("-inf")


def test_the_drivers_status_is_handed_on(entry_point: EntryPoint) -> None:
    to = torch.zeros(32, dtype=torch.float64)
    assert entry_point.launch(1, 1, (False, to, 1.0, 1, 1, None), 1001, 0) == 700


def test_no_such_grid(entry_point: EntryPoint) -> None:
    to = torch.zeros(32, dtype=torch.float64)
    for blocks, threads, shared in ((-1, 1, 0), (2**32, 1, 0), (1, 1, -1)):
        with pytest.raises(LaunchError, match="launch of 'k' with grid"):
            entry_point.launch(blocks, threads, (False, to, 1.0, 1, 1, None), shared, 0)


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
