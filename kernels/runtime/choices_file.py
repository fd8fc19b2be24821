"""Choices in a file: what served a program's problems, to be served again, exactly, by every process that loads it.

A file is JSON: under `choices` one entry for each kernel, problem and kind of device.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tunebench.kernels.runtime.selection import Choice, Tier
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device
from tunebench.tuner.errors import UserError
from tunebench.tuner.files import whole_file
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.problem import Problem
from tunebench.tuner.typed_json import parse


class ChoicesFileError(UserError):
    """A file of choices that cannot be read, or is not one."""


@dataclass(frozen=True)
class SavedChoice:
    """The saved choice for one problem of a kernel on one kind of device.

    Attributes:
        kernel, digest: its name, and which version of it.
        axes, dtype, options: of the problem.
        device, architecture: the device's name, such as `NVIDIA H200`, and what binaries for it are compiled for.
        configuration: None where the reference's own operations ran.
        tier, reason: where the choice came from, for people.
    """

    kernel: str
    digest: str
    axes: dict[str, int]
    dtype: str
    options: dict[str, str]
    device: str
    architecture: str
    configuration: dict[str, bool | int | float | str] | None
    tier: str
    reason: str

    @classmethod
    def of(cls, kernel: Kernel, problem: Problem, device: Device, choice: Choice) -> SavedChoice:
        """Return a choice that a model of the kernel made."""
        return cls(
            kernel=kernel.name,
            digest=kernel.digest,
            axes=dict(problem.axes),
            dtype=problem.dtype,
            options=dict(problem.options),
            device=device.name,
            architecture=device.architecture,
            configuration=None if choice.configuration is None else dict(choice.configuration),
            tier=choice.tier.value,
            reason=choice.reason,
        )

    @property
    def problem(self) -> Problem:
        """The problem that it served."""
        return Problem(self.axes, self.dtype, self.options)


@dataclass(frozen=True)
class _File:
    choices: list[SavedChoice]


@dataclass(frozen=True)
class _Loaded:
    saved: SavedChoice
    path: Path

    @property
    def choice(self) -> Choice:
        """As it is served."""
        values = self.saved.configuration
        configuration = None if values is None else Configuration(values)
        reason = f"loaded from {self.path}: {self.saved.reason}"
        return Choice(configuration, Tier(self.saved.tier), reason, trusted=True)


_loaded: dict[tuple[str, Problem], dict[str, _Loaded]] = {}
"""The loaded choices by kernel's name and problem, then by device's name."""
_said: set[str] = set()


def read_choices(path: Path) -> list[SavedChoice]:
    """Return the choices in a file.

    Raises:
        ChoicesFileError: it cannot be read, or is not such a file.
    """
    try:
        choices = parse(_File, path.read_bytes()).choices
        for choice in choices:
            Tier(choice.tier)
    except ValueError as error:
        raise ChoicesFileError(f"{path}: not choices that tunebench.save_choices wrote: {error}") from error
    except OSError as error:
        raise ChoicesFileError(f"{path}: cannot be read: {error.strerror}") from error
    return choices


def write_choices(path: Path, choices: Iterable[SavedChoice]) -> None:
    """Write choices, sorted, so that a change shows as one; of two for one problem and kind of device the last counts.

    Raises:
        UserError: the file cannot be written.
    """
    by_identity = {(one.kernel, one.problem.key, one.device): one for one in choices}
    content = asdict(_File([by_identity[identity] for identity in sorted(by_identity)]))
    with whole_file(path) as stream:
        stream.write(json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n")


def load_choices(*paths: str | Path) -> int:
    """Use from now on the choices of these files, before all else, and none of files that were loaded before.

    A problem that is in them is served on that kind of device as they say, without a look at results and without a
    duel, whatever the policy is; only the policy `reference` goes before. What was chosen for another version of the
    kernel or another kind of device, or what the kernel's space no longer admits, is warned of once and passed over.
    Models keep what they chose in earlier calls: load before their first.

    Returns:
        How many choices were loaded.

    Raises:
        ChoicesFileError: a file cannot be read, or is not one that `save_choices` wrote; nothing has changed.
    """
    found = [_Loaded(saved, Path(path)) for path in paths for saved in read_choices(Path(path))]
    _loaded.clear()
    _said.clear()
    for one in found:
        _loaded.setdefault((one.saved.kernel, one.saved.problem), {})[one.saved.device] = one
    return len(found)


def original(kernel: Kernel, problem: Problem, device: Device, choice: Choice) -> SavedChoice:
    """Return a choice as it is saved: one that was loaded from a file stays as it was there."""
    loaded = _loaded.get((kernel.name, problem), {}).get(device.name)
    return loaded.saved if loaded and loaded.choice == choice else SavedChoice.of(kernel, problem, device, choice)


def loaded_choice(kernel: Kernel, problem: Problem, device: Device) -> Choice | None:
    """Return the choice that a loaded file has for a problem on a device; None where none has one that still holds."""
    by_device = _loaded.get((kernel.name, problem))
    stale = _of_another_call(kernel, problem) if by_device is None else _why_stale(by_device, kernel, problem, device)
    if by_device is not None and stale is None:
        return by_device[device.name].choice
    if stale is not None and stale not in _said:
        _said.add(stale)
        warnings.warn(f"{stale}: passed over; save the choices again", RuntimeWarning, stacklevel=7)
    return None


def _of_another_call(kernel: Kernel, problem: Problem) -> str | None:
    """Say that a file has a problem of the same names that is another call; None if it has none."""
    for (name, saved), by_device in _loaded.items():
        if name == kernel.name and saved.named == problem.named:
            path = next(iter(by_device.values())).path
            return f"{path}: its choice for {kernel.name} at {saved} is for other shapes or settings, or another torch"
    return None


def _why_stale(by_device: Mapping[str, _Loaded], kernel: Kernel, problem: Problem, device: Device) -> str | None:
    if device.name not in by_device:
        path, names = next(iter(by_device.values())).path, ", ".join(sorted(by_device))
        return f"{path}: its choices for {kernel.name} were made on {names}, and this is {device.name}"
    loaded = by_device[device.name]
    if loaded.saved.digest != kernel.digest:
        return f"{loaded.path}: its choices are for another version of {kernel.name}"
    configuration = loaded.choice.configuration
    if configuration is not None and not kernel.space.admits(configuration, problem, device):
        return f"{loaded.path}: {kernel.name} does not admit the configuration in it for {problem}"
    return None
