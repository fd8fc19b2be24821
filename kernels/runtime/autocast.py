"""A tuned model under autocast: its kernel for the type that autocast casts to.

Autocast has products and convolutions run in a half type, and what follows them in whatever types come out of that. A
kernel does all of it in one type. So it runs on inputs, parameters and buffers that are cast to autocast's type, adds
up in float32 as it does for that type, and gives its output the type that the reference's has under autocast. An output
that the reference would have in float32 is rounded once more than there: its error is of the same size as that of the
product, which the reference rounds too.

Such a call is a problem of its own, which has the option `autocast` and the type that is cast to. What was measured for
the problem in that type tells which kernels may be fast, and not how fast the reference is under autocast: a duel does.

Where autocast would have nothing run in a half type, the kernel runs as without it; but a reference whose result is
wider than its inputs, such as a softmax of half types in float32, serves itself: a kernel of theirs has rounded it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from tunebench.kernels.runtime.derived import DerivedTensors
from tunebench.kernels.runtime.gradients import replica
from tunebench.kernels.runtime.ordinary import held
from tunebench.kernels.runtime.reference_call import ReferenceCall
from tunebench.kernels.runtime.selection import AUTOCAST_OPTION
from tunebench.tuner.problem import Problem


def autocast_type(device: torch.device) -> torch.dtype | None:
    """Return the type that autocast casts to on a device; None where it is off there, or on for another kind too."""
    others = [one for one in ("cpu", "cuda") if one != device.type]
    if not torch.is_autocast_enabled(device.type) or any(map(torch.is_autocast_enabled, others)):
        return None
    return torch.get_autocast_dtype(device.type)


class UnderAutocast:
    """A module's forward under the autocast that is on.

    Args:
        module: a tuned one.
        device: of the call's tensors.
        dtype: that autocast casts to.
        traced: what the reference does in such a call, under that autocast.
    """

    def __init__(self, module: Any, device: torch.device, dtype: torch.dtype, traced: ReferenceCall) -> None:
        self.module, self.dtype, self._result = module, dtype, traced.output
        self._casts = dtype in traced.dtypes
        self._device = device.type

    def problem(self, inputs: Sequence[Any]) -> Problem | None:
        """Return the problem of a call like that; None where no kernel serves it."""
        found: Problem | None
        if self._result is None:
            found = self.module.unserved("autocast is on, and the type of the reference's result is not known")
            return found
        with torch.autocast(self._device, enabled=False):
            if not self._casts:
                widens = any(self._result.itemsize > one.dtype.itemsize for one in inputs if _is_floating(one))
                why = f"autocast is on, and has the result in {str(self._result).removeprefix('torch.')}"
                found = self.module.unserved(why) if widens else self.module.problem(*inputs)
                return found
            parameters, buffers = held(self.module)
            if not all(map(_is_float32, (*inputs, *parameters, *buffers))):
                found = self.module.unserved("autocast is on, and inputs or parameters are not float32")
            elif self.module.training and any(one.is_floating_point() for one in buffers):
                found = self.module.unserved("autocast is on, and what moves in train mode is float32")
            else:
                found = self._twin().problem(*cast(inputs, self.dtype))
        if found is None:
            return None
        option = {AUTOCAST_OPTION: str(self.dtype).removeprefix("torch.")}
        return replace(found, options={**found.options, **option})

    def run(self, plan: Any, _: Any, *inputs: Any) -> torch.Tensor:
        """Run the kernel, and return its answer in the type that the reference's has."""
        result: torch.Tensor
        with torch.autocast(self._device, enabled=False):
            if self._casts:
                result = self._twin().tuned_forward(plan, *cast(inputs, self.dtype))
            else:
                result = self.module.tuned_forward(plan, *inputs)
        return result.to(self._result)

    def _twin(self) -> Any:
        """Return the module in the other type; made in each call, or kept while the module is frozen."""
        return self.module.derived(
            AUTOCAST_OPTION, partial(_twin_of, self.module, self.dtype), (self.module,), self.dtype
        )


def _twin_of(module: Any, dtype: torch.dtype) -> Any:
    made = replica(module, *(cast(tensors, dtype) for tensors in held(module)))
    if made.is_frozen:
        made._derived = DerivedTensors()
    return made


def cast(values: Sequence[Any], dtype: torch.dtype) -> list[Any]:
    """Return the same with floating-point tensors of this type."""
    return [one.detach().to(dtype) if _is_floating(one) else one for one in values]


def _is_float32(value: Any) -> bool:
    return not _is_floating(value) or value.dtype == torch.float32


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
