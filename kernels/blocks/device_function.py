"""A device function's text: which names it uses, and the CUDA C++ that it becomes.

A text is an expression, or statements that end in `return …;`. It stands in the namespace of `functions.cuh`, its
values are `accumulator_t`, and so are the real numbers written in it: `0.5` is no double that would make a float's
arithmetic slow.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from tunebench.tuner.errors import KernelFolderError

_NUMBER = re.compile(r"(?<![\w.])(?:0[xX][0-9a-fA-F]+|\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFuUlL]*")
_REAL = re.compile(r"(?<![\w.])((?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)(?![\w.])")
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?!\w)(?!\s*(?:\(|::))")
_CALLED = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\s*\(")
_DECLARED = re.compile(
    r"\b(?:auto|bool|int|long|unsigned|float|double|accumulator_t|scalar_t)\s*[&*]?\s+&?([A-Za-z_]\w*)"
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_STRING = re.compile(r'"[^"\n]*"')

_WORDS_TEXT = (
    "auto bool break case char const constexpr continue default do double else false float for if int long return "
    "short signed sizeof static static_cast switch true unsigned void while INFINITY NAN scalar_t accumulator_t "
    "is_double is_fast fast_math"
)
_WORDS = frozenset(_WORDS_TEXT.split())
"""The words that a text may use in addition to its operands: C++'s own, and names defined wherever the text stands."""

_FAST_TEXT = "exp log tanh divide sigmoid silu swish softplus logsigmoid mish gelu_tanh tanhshrink"
_FAST = frozenset(_FAST_TEXT.split())
"""The functions of `functions.cuh` that `fast_math` makes a difference to."""
_BY_TANH = frozenset({"tanh", "sigmoid", "silu", "swish", "gelu_tanh", "tanhshrink"})
"""The functions of `functions.cuh` that `fast_tanh` makes a difference to."""


def used_names(text: str) -> list[str]:
    """Return the names that a text neither declares nor calls, in the order they come."""
    plain = _NUMBER.sub(" ", _without_comments(text))
    own = set(_DECLARED.findall(plain)) | _WORDS
    return [name for name in dict.fromkeys(_NAME.findall(plain)) if name not in own]


def has_fast_form(texts: Iterable[str]) -> bool:
    """Return whether any of the texts calls a function that `fast_math` makes a difference to."""
    return _calls(texts, _FAST)


def has_fast_tanh(texts: Iterable[str]) -> bool:
    """Return whether any of the texts calls a function that `fast_tanh` makes a difference to."""
    return _calls(texts, _BY_TANH)


def is_off_near_zero(texts: Iterable[str]) -> bool:
    """Return whether `fast_math` has any of the texts off by a rounding of 1, however small its value is."""
    return _calls(texts, ("tanh", "tanhshrink"))


def _calls(texts: Iterable[str], functions: Collection[str]) -> bool:
    return any(name in functions for text in texts for name in _CALLED.findall(_without_comments(text)))


def device_function(where: str, name: str, text: str, parameters: Iterable[str]) -> str:
    """Return the device function in CUDA C++.

    Args:
        where: the class and attribute, for the compiler's messages.
        parameters: names; all of them are `accumulator_t`.

    Raises:
        KernelFolderError: the statements do not end in a `return`.
    """
    taken = ", ".join(f"accumulator_t {parameter}" for parameter in parameters)
    return (
        f"namespace functions {{\n__device__ __forceinline__ accumulator_t {name}({taken}) {{\n"
        f'#line 1 "{where}"\n{body_of(where, text)}\n}}\n}}  // namespace functions\n'
    )


def body_of(where: str, text: str) -> str:
    """Return a text as the statements of a function."""
    text = text.strip()
    if ";" not in _without_comments(text):
        text = f"return {text};"
    elif not re.search(r"\breturn\b", text):
        raise KernelFolderError(f"{where}: its statements have no `return`: end them with `return …;`")
    return _REAL.sub(r"accumulator_t(\1)", text)


def _without_comments(text: str) -> str:
    return _STRING.sub(" ", _COMMENT.sub(" ", text))
