"""Reductions of a row, and the passes over it in which they are made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tunebench.kernels.blocks.device_function import used_names


@dataclass(frozen=True)
class Reduction:
    """A reduction of a row.

    Attributes:
        text: the device function of an element whose values are reduced.
    """

    text: str


class Sum(Reduction):
    """The sum of a device function of the elements."""


class Product(Reduction):
    """The product of a device function of the elements."""


class Max(Reduction):
    """The maximum of a device function of the elements; a NaN among them is the maximum, as in torch."""


class Min(Reduction):
    """The minimum of a device function of the elements; a NaN among them is the minimum, as in torch."""


@dataclass(frozen=True)
class Stages:
    """The pass in which each reduction is made.

    Attributes:
        online: a maximum and the sum of exp(x - maximum) that can be made in one pass, by their numbers.
        is_finite: that sum takes `zero_if_infinite` of the maximum.
    """

    plain: tuple[int, ...]
    joined: tuple[int, ...]
    online: tuple[int, int] | None
    is_finite: bool

    @property
    def counts(self) -> tuple[int, int]:
        """How many passes there are, plain and with what can be made in one."""
        return max(self.plain) + 1, max(self.joined) + 1


def stages_of(reductions: Mapping[str, Reduction]) -> Stages:
    """Return the passes of reductions, by name in their order: one is made behind those that it uses."""
    names = list(reductions)
    plain: list[int] = []
    for one in reductions.values():
        earlier = [plain[names.index(name)] for name in used_names(one.text) if name in names]
        plain.append(max(earlier, default=-1) + 1)
    online, is_finite = _online_pair(reductions, plain)
    joined: list[int] = []
    for number, one in enumerate(reductions.values()):
        earlier = [joined[names.index(name)] for name in used_names(one.text) if name in names]
        is_sum = online is not None and number == online[1]
        joined.append(joined[online[0]] if online and is_sum else max(earlier, default=-1) + 1)
    return Stages(tuple(plain), tuple(joined), online, is_finite)


def _online_pair(reductions: Mapping[str, Reduction], stages: list[int]) -> tuple[tuple[int, int] | None, bool]:
    """Find a maximum of t and a sum of exp(t - maximum), and whether that takes `zero_if_infinite` of the maximum."""
    numbered = list(enumerate(reductions.items()))
    for top, (name, one) in numbered:
        for total, (_, other) in numbered:
            if isinstance(one, Max) and isinstance(other, Sum) and stages[total] == stages[top] + 1:
                text = re.sub(r"\s", "", one.text)
                found = re.sub(r"\s", "", other.text)
                for element in (text, f"({text})"):
                    if found in (f"exp({element}-{name})", f"exp({element}-zero_if_infinite({name}))"):
                        return (top, total), "zero_if_infinite" in found
    return None, False
