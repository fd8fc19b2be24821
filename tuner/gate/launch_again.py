"""Makes recorded launches again, in a process of its own: `python launch_again.py FILE DEVICE`.

It imports the driver's bindings and nothing else, so that a sanitizer has little to watch. The file is one that
`sanitizer.py` has just written.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
from pathlib import Path
from typing import Any

NO_ROOM = 87
"""The exit code where the device has no memory left, which is no launch's fault."""


def main(recording: str, device_index: str) -> None:
    """Make every launch, and wait for the last."""
    from cuda.bindings import driver

    def ask(function: Any, *arguments: Any) -> Any:
        status, *values = function(*arguments)
        if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            sys.exit(NO_ROOM)
        if int(status) != 0:
            sys.exit(f"{function.__name__}: {status}")
        return values[0] if values else None

    ask(driver.cuInit, 0)
    context = ask(driver.cuDevicePrimaryCtxRetain, ask(driver.cuDeviceGet, int(device_index)))
    ask(driver.cuCtxSetCurrent, context)
    for code, entry_point, grid, block, shared, buffers, arguments in pickle.loads(Path(recording).read_bytes()):
        function = ask(driver.cuModuleGetFunction, ask(driver.cuModuleLoadData, code), entry_point.encode())
        if shared:
            limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            ask(driver.cuFuncSetAttribute, function, limit, shared)
        pointers = []
        for held, size in buffers:
            pointers.append(int(ask(driver.cuMemAlloc, max(1, size))))
            for place in range(0, size, max(1, len(held))):
                ask(driver.cuMemcpyHtoD, pointers[-1] + place, held, min(len(held), size - place))
        values = []
        for argument in arguments:
            number = argument if isinstance(argument, bytes) else _pointing(pointers, *argument)
            values.append(ctypes.create_string_buffer(number, max(8, len(number))))
        places = (ctypes.c_void_p * max(1, len(values)))(*map(ctypes.addressof, values))
        ask(driver.cuLaunchKernel, function, *grid, *block, shared, 0, ctypes.addressof(places), 0)
        ask(driver.cuCtxSynchronize)
        for pointer in pointers:
            ask(driver.cuMemFree, pointer)


def _pointing(pointers: list[int], buffer: int, offset: int, layout: Any = None) -> bytes:
    """Return a pointer, or the tensor map of a layout there."""
    address = pointers[buffer] + offset
    if layout is None:
        return bytes(ctypes.c_void_p(address))
    from tunebench.tuner.tensor_map import encoded_map

    return encoded_map(address, layout)


if __name__ == "__main__":
    main(*sys.argv[1:])
