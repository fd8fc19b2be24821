"""PyTorch settings that change a reference: lower precision, other orders of summation, other algorithms.

A program sets this with a line, `torch.set_float32_matmul_precision("high")` being the most common one, and the same
model is another opponent then. The settings that matter to a call are therefore options of its problem: a result
that was measured under one setting says nothing about another. Settings that are at PyTorch's defaults are no options.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType
from typing import Any

from tunebench.tuner.errors import UnknownNameError, UserError


class Setting(enum.StrEnum):
    """A setting, by the name of the problem's option."""

    MATMUL = "matmul"
    """The precision of float32 matrix products: `set_float32_matmul_precision`, `allow_tf32`, `fp32_precision`."""
    CONVOLUTION = "convolution"
    """The precision of float32 convolutions."""
    RECURRENT = "recurrent"
    """The precision of float32 recurrent layers."""
    REDUCTIONS = "reductions"
    """The type that products in half types may be summed in."""
    ALGORITHMS = "algorithms"
    """Whether only deterministic algorithms may run: `torch.use_deterministic_algorithms`."""
    CUDNN = "cudnn"
    """The choice of cuDNN's algorithms: `torch.backends.cudnn.benchmark`, `deterministic` and `enabled`."""


VALUES: Mapping[Setting, tuple[str, ...]] = MappingProxyType(
    {
        Setting.MATMUL: ("ieee", "tf32", "bf16"),
        Setting.CONVOLUTION: ("ieee", "tf32", "bf16"),
        Setting.RECURRENT: ("ieee", "tf32", "bf16"),
        Setting.REDUCTIONS: ("reduced", "float32", "float16"),
        Setting.ALGORITHMS: ("any", "deterministic"),
        Setting.CUDNN: ("heuristic", "benchmark", "deterministic", "off"),
    }
)
"""The values that each setting may have."""

_NAMES = frozenset(setting.value for setting in Setting)
_BACKEND = {"cuda": "cuda", "cpu": "mkldnn"}
_OPERATION = {Setting.MATMUL: "matmul", Setting.CONVOLUTION: "conv", Setting.RECURRENT: "rnn"}
"""PyTorch's names: a backend by the type of device, and an operation by the setting of its precision."""


_meta_stands_for: ContextVar[tuple[str, Mapping[str, str]]] = ContextVar("_meta_stands_for", default=("cuda", {}))
"""The type of device that tensors without memory stand for, and the settings there: PyTorch's defaults on a GPU."""


@contextmanager
def meta_stands_for(device_type: str, settings: Mapping[str, str]) -> Iterator[None]:
    """Let tensors on the device `meta` stand for those of a kind of device, under these settings.

    So a problem is identified without its device, and without putting settings in force that others would see.
    """
    token = _meta_stands_for.set((device_type, settings))
    try:
        yield
    finally:
        _meta_stands_for.reset(token)


def kind_of(device_type: str) -> str:
    """Return the type of device, that which a tensor without memory stands for."""
    return _meta_stands_for.get()[0] if device_type == "meta" else device_type


def default_of(setting: Setting, device_type: str) -> str:
    """Return PyTorch's default on a kind of device."""
    if setting in (Setting.CONVOLUTION, Setting.RECURRENT):
        return "tf32" if device_type == "cuda" else "ieee"
    return VALUES[setting][0]


def in_force(names: Iterable[Setting], device_type: str) -> dict[str, str]:
    """Return those of the settings that are not PyTorch's default on a kind of device now."""
    found = {name: value_of(name, device_type) for name in names}
    kind = kind_of(device_type)
    return {name.value: value for name, value in found.items() if value != default_of(name, kind)}


def settings_here(device_type: Callable[[], str]) -> dict[str, str]:
    """Return the settings in force in this process that are not PyTorch's defaults.

    Args:
        device_type: returns the type of device that they are asked for; not called where PyTorch is not imported, which
            leaves nothing to be set.
    """
    return in_force(Setting, device_type()) if "torch" in sys.modules else {}


def watch(names: Iterable[Setting], device_type: str) -> Callable[[], object]:
    """Return a quick function whose result is another once one of these settings has changed.

    It stands in every call that a kernel serves, where nothing of it is in the processor's caches: PyTorch's getter of
    a precision by its name takes 1.5 µs there, its older flags and all else next to nothing.
    """
    readers: list[Callable[[], object]] = []
    for name in names:
        flag = _quick_flag(name) if device_type == "cuda" else None
        readers += readers_of(name, device_type) if flag is None else (flag,)
    if len(readers) == 2:
        one, other = readers
        return lambda: (one(), other())
    return lambda: [read() for read in readers]


def _quick_flag(name: Setting) -> Callable[[], object] | None:
    """Return PyTorch's older flag of a precision on a GPU; None where there is none, or where it refuses to tell.

    It refuses once a program has used `fp32_precision`, after which the two may disagree.
    """
    from torch import _C

    flags = {
        Setting.MATMUL: _C._get_cublas_allow_tf32,
        Setting.CONVOLUTION: _C._get_cudnn_allow_tf32,
        Setting.RECURRENT: _C._get_cudnn_allow_tf32,
    }
    flag = flags.get(name)

    def read() -> object:
        try:
            return flag and flag()
        except RuntimeError:
            return None

    return None if read() is None else read


def readers_of(name: Setting, device_type: str) -> tuple[Callable[[], Any], ...]:
    """Return the functions of PyTorch's that say what is set."""
    from torch import _C

    match name:
        case Setting.REDUCTIONS:
            return (
                _C._get_cublas_allow_fp16_reduced_precision_reduction,
                _C._get_cublas_allow_bf16_reduced_precision_reduction,
                _C._get_cublas_allow_fp16_accumulation,
            )
        case Setting.ALGORITHMS:
            return (_C._get_deterministic_algorithms,)
        case Setting.CUDNN:
            # cuDNN has no part in what runs on a CPU.
            of_cudnn = _C._get_cudnn_enabled, _C._get_cudnn_benchmark, _C._get_cudnn_deterministic
            return () if device_type == "cpu" else of_cudnn
    return (partial(_C._get_fp32_precision_getter, _BACKEND.get(device_type, "cuda"), _OPERATION[name]),)


def value_of(name: Setting, device_type: str) -> str:
    """Return what a setting is now on a kind of device."""
    if device_type == "meta":
        kind, settings = _meta_stands_for.get()
        return settings.get(name) or default_of(name, kind)
    found = [read() for read in readers_of(name, device_type)]
    match name:
        case Setting.REDUCTIONS:
            # Newer versions of PyTorch return beside it whether a sum may be split along K.
            half, brain, in_half = (one[0] if isinstance(one, tuple) else one for one in found)
            return "float16" if in_half else "reduced" if half and brain else "float32"
        case Setting.ALGORITHMS:
            return "deterministic" if found[0] else "any"
        case Setting.CUDNN:
            enabled, benchmark, deterministic = found or (True, False, False)
            chosen = "deterministic" if deterministic else "benchmark" if benchmark else "heuristic"
            return chosen if enabled else "off"
    return "ieee" if found[0] == "none" else str(found[0])


def settings_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return those of a problem's options that are settings."""
    return {name: value for name, value in options.items() if name in _NAMES}


def described(options: Mapping[str, str]) -> str:
    """Say under which settings the reference of a problem with these options ran."""
    return " ".join(f"{name}={value}" for name, value in settings_of(options).items()) or "PyTorch's defaults"


def parse_settings(given: Mapping[str, object]) -> dict[str, str]:
    """Check settings by name that a user gives.

    Raises:
        UserError: there is no such setting, or it has no such value.
    """
    for name, value in given.items():
        if name not in _NAMES:
            raise UnknownNameError("setting", name, tuple(Setting))
        legal = VALUES[Setting(name)]
        if value not in legal:
            raise UserError(f"setting {name}={value}: the legal values are {', '.join(legal)}")
    return {name: str(value) for name, value in given.items()}


def require_settings(given: Mapping[str, str], device_type: str) -> None:
    """Refuse a value that a kind of device does not have, before anything runs there.

    Raises:
        UserError: it does not have it.
    """
    for name, value in given.items():
        is_product = name == Setting.MATMUL
        if value == ("bf16" if device_type == "cuda" else "tf32") and not (is_product and value == "tf32"):
            legal = [one for one in VALUES[Setting(name)] if one != value and (is_product or one == "ieee")]
            raise UserError(
                f"setting {name}={value}: PyTorch has no such {name} on a device of type '{device_type}': "
                f"use {' or '.join(legal)}"
            )


def statements(given: Mapping[str, str]) -> list[str]:
    """Return the lines of Python that put settings in force, by the calls that programs make."""
    lines = []
    for name, value in given.items():
        match Setting(name):
            case Setting.MATMUL:
                precision = {"ieee": "highest", "tf32": "high", "bf16": "medium"}[value]
                lines.append(f"torch.set_float32_matmul_precision({precision!r})")
            case Setting.CONVOLUTION | Setting.RECURRENT:
                lines.append(f"torch.backends.cudnn.allow_tf32 = {value == 'tf32'}")
            case Setting.REDUCTIONS:
                products = "torch.backends.cuda.matmul"
                for half in ("fp16", "bf16"):
                    lines.append(f"{products}.allow_{half}_reduced_precision_reduction = {value != 'float32'}")
                lines.append(f"{products}.allow_fp16_accumulation = {value == 'float16'}")
            case Setting.ALGORITHMS:
                lines.append(f"torch.use_deterministic_algorithms({value == 'deterministic'})")
            case Setting.CUDNN:
                lines.append(f"torch.backends.cudnn.enabled = {value != 'off'}")
                lines += [f"torch.backends.cudnn.{one} = {value == one}" for one in ("benchmark", "deterministic")]
    return lines


def apply_settings(given: Mapping[str, str], device_type: str) -> None:
    """Put settings in force in this process; those that are so already are left alone.

    Raises:
        UserError: this device has no such precision.
    """
    import torch

    for name, value in given.items():
        if value_of(Setting(name), device_type) == value:
            continue
        for line in statements({name: value}):
            exec(line, {"torch": torch})
        if value_of(Setting(name), device_type) != value:
            raise UserError(f"setting {name}={value}: PyTorch has no such {name} on a device of type '{device_type}'")


@contextmanager
def under(given: Mapping[str, str], device_type: str) -> Iterator[None]:
    """Put settings in force in this process for a while.

    Raises:
        UserError: see `apply_settings`.
    """
    before = {name: value_of(Setting(name), device_type) for name in given}
    try:
        apply_settings(given, device_type)
        yield
    finally:
        apply_settings(before, device_type)


@contextmanager
def strict_float32(*, convolutions: bool = True) -> Iterator[None]:
    """Run float32 products in float32, whatever the process permits otherwise.

    Args:
        convolutions: so for convolutions and recurrent layers too.
    """
    import torch

    try:
        products, others = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:
        # The program has used `fp32_precision`, after which PyTorch refuses to say it in its older words.
        with _strict_by_backend(_OPERATION if convolutions else [Setting.MATMUL]):
            yield
        return
    others = others and convolutions
    if products != "highest":
        torch.set_float32_matmul_precision("highest")
    if others:
        torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        if others:
            torch.backends.cudnn.allow_tf32 = True
        if products != "highest":
            torch.set_float32_matmul_precision(products)


@contextmanager
def _strict_by_backend(settings: Iterable[Setting]) -> Iterator[None]:
    from torch import _C

    places = [
        (backend, operation) for backend in _BACKEND.values() for operation in map(_OPERATION.__getitem__, settings)
    ]
    before = {place: _C._get_fp32_precision_getter(*place) for place in places}
    lower = {place: value for place, value in before.items() if value not in ("ieee", "none")}
    for place in lower:
        _C._set_fp32_precision_setter(*place, "ieee")
    try:
        yield
    finally:
        for place, value in lower.items():
            _C._set_fp32_precision_setter(*place, value)
