"""Which attributes of a problem's model the class of its kernel would hide, by having one of the same name."""

from __future__ import annotations

import inspect
from collections.abc import Collection

from torch import nn

from tunebench.kernels.runtime.outline import OWN
from tunebench.kernels.runtime.tuned_module import TunedModule


def hidden_names(model: nn.Module, base: type[nn.Module], own: Collection[str] = ()) -> list[str]:
    """Return the names that both the model and the class of its kernel give to attributes of their own, sorted.

    Args:
        base: the class that the kernel's class inherits from beside the model's.
        own: what the kernel's class adds to it.
    """
    ours = [one for one in base.__mro__ if issubclass(one, TunedModule)]
    taken = {*dir(base), *own, *OWN, *(name for one in ours for name in inspect.get_annotations(one))}
    for one in ours:
        if "__init__" in vars(one):
            taken |= {*vars(one)["__init__"].__code__.co_names}  # among them the attributes that it sets
    given = {*vars(model), *model._parameters, *model._buffers, *model._modules}
    for one in type(model).__mro__[: type(model).__mro__.index(nn.Module)]:
        given |= vars(one).keys() - {"__annotations__", "__abstractmethods__"}
    of_every_module = {*dir(nn.Module), *vars(nn.Module())}
    return sorted(name for name in (given & taken) - of_every_module if not name.startswith("__"))
