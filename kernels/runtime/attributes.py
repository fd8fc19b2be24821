"""The layers, numbers, words and switches of a model, for which a kernel was written."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

OF_EVERY_MODULE = frozenset({*vars(nn.Module()), "policy", "accuracy", "wait", "compile_mode"})
"""The names of attributes that every module has, or every tuned one may have; no kernel computes by them."""
_SIZED = (nn.Linear, nn.Bilinear, nn.Embedding, nn.GroupNorm, _ConvNd, _NormBase)
"""Layers whose numbers are sizes, which a block reads when it is called."""


def attributes_of(model: nn.Module) -> dict[str, object]:
    """Return the classes of a model's layers, and by their paths the shapes of tensors, and what is plain.

    Plain are numbers, words and types, and several of them, functions by their names, and of other objects, such as a
    configuration, what they hold of these. So are attributes of the layer's class.
    """
    found: dict[str, object] = {}
    for place, layer in model.named_modules():
        held = {**_of_class(type(layer)), **vars(layer)}
        own = {name: value for name, value in held.items() if name not in OF_EVERY_MODULE}
        own |= {name: fields for name, value in own.items() if (fields := fields_of(value))}
        own = {name: _told(value) for name, value in own.items() if _is_plain(value)}
        tensors = (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))
        own |= {name: tuple(tensor.shape) for name, tensor in tensors}
        found |= {place: type(layer).__name__} if place else {}
        found |= {f"{place}.{name}" if place else name: value for name, value in own.items()}
    return found


def structure_of(model: nn.Module) -> dict[str, object]:
    """Return those of them that a block does not read when it is called.

    It reads the shapes of tensors, the sizes of layers, and the numbers that are public attributes of the author's own.
    """
    layers = dict(model.named_modules())
    of_any = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    tensors = {path for path, _ in of_any}
    sized = {place for place, layer in layers.items() if isinstance(layer, _SIZED)}
    of_torch = {place for place, layer in layers.items() if _is_of_torch(type(layer))}

    def is_fixed(path: str, value: object) -> bool:
        place, _, name = (path, "", "") if path in layers else path.rpartition(".")
        if path in tensors or place in sized or name == "normalized_shape":
            return False
        if isinstance(value, int | float) and not isinstance(value, bool):
            return name not in vars(layers[place]) or name[0] == "_" or (type(value) is int and place in of_torch)
        return isinstance(value, str | bool | tuple | list | dict)

    return {path: value for path, value in attributes_of(model).items() if is_fixed(path, value)}


def changed(model: nn.Module, written_for: Mapping[str, object], *, is_structure: bool = False) -> str:
    """Return the path of what is not as a kernel was written for; empty where there is none.

    That is a layer, too, that is another one, is more than there were, or is in another mode than the model.

    Args:
        is_structure: the kernel was written for `structure_of` a model, and normalises in the mode of each layer.
    """
    found, layers = attributes_of(model), {place: one for place, one in model.named_modules() if place}
    paths = [path for path, value in written_for.items() if path not in found or found[path] != value]
    if layers.keys() & written_for.keys():  # kernels of earlier versions were not written for layers
        more = layers.keys() - written_for.keys()
        paths += [place for place in more if not (is_structure and isinstance(layers[place], _SIZED))]
    moded = {place: one for place, one in layers.items() if not (is_structure and isinstance(one, _NormBase))}
    paths += [place for place, one in moded.items() if one.training != model.training]
    return next(iter(paths), "")


def fields_of(value: object) -> dict[str, object]:
    """Return what is plain in an object that is no tensor, layer or function; nothing of such, and of what is plain."""
    if isinstance(value, torch.Tensor | nn.Module) or callable(value):
        return {}
    return {name: one for name, one in getattr(value, "__dict__", {}).items() if _is_plain(one)}


def _of_class(kind: type) -> dict[str, object]:
    """Return the numbers and words, and several of them, that a class of the author's own has for all its layers."""
    own = [one for one in reversed(kind.__mro__) if issubclass(one, nn.Module) and not _is_of_torch(one)]
    found = {name: value for one in own for name, value in vars(one).items() if not name.startswith("__")}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, int | float | str | tuple | list | dict) and _is_plain(value)
    }


def _is_of_torch(kind: type) -> bool:
    return kind.__module__.startswith("torch.nn.")


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(one) for key, one in value.items())
    return isinstance(value, int | float | str | torch.dtype) or value is None or hasattr(value, "__name__")


def _told(value: object) -> object:
    """The same, with types and functions as words."""
    if isinstance(value, list):
        return [_told(one) for one in value]
    if isinstance(value, tuple):
        return tuple(_told(one) for one in value)
    if isinstance(value, dict):
        return {key: _told(one) for key, one in value.items()}
    return str(value) if isinstance(value, torch.dtype) else getattr(value, "__name__", value)
