"""Images that are convolved between passes, or behind them: how they lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

PICTURES, _MANY_CHANNELS = 4, 16
"""The dimensions of images of two sides, and the channels from which on a product of them is worth a layout."""


def is_product_of_images(shape: Sequence[Any]) -> bool:
    """Return whether a convolution of such images, in one group, is a product: of channels-last ones, then."""
    channels = shape[1] if len(shape) == PICTURES else None
    return isinstance(channels, int | sympy.Integer) and int(channels) >= _MANY_CHANNELS


def channels_last_strides(shape: Sequence[Any]) -> list[Any]:
    """Return the strides of images that are dense and channels-last."""
    _, channels, height, width = shape
    return [channels * height * width, 1, channels * width, channels]
