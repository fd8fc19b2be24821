"""Makes one call of a file's model, in a process that compute-sanitizer watches from its start.

The judge writes one file, for which this waits; into another goes what the call raises, or that it has returned.
"""

from __future__ import annotations

import pickle
import time
import warnings
from pathlib import Path

import torch

from tunebench.tuner.gate.boundary.spec import SandboxSpec
from tunebench.tuner.gate.memory import synchronise
from tunebench.tuner.gate.model import CallOptions
from tunebench.tuner.gate.process_state import Watch
from tunebench.tuner.gate.sources import Sizes
from tunebench.tuner.kernel import Mode
from tunebench.tuner.users_code import described

Call = tuple[SandboxSpec, Sizes, Mode]

_WAIT_SECONDS = 0.01

_PLAIN = CallOptions(byte=None, guarded=False, seed=1)
"""Nothing lies behind a buffer: a guard band would be memory that may be written."""


RETURNED = "returned"
"""The report on a call that came to its end."""


def main(call: str, told: str) -> None:
    """Make the call, and wait for the device.

    Args:
        call, told: names of the two files.
    """
    warnings.simplefilter("ignore")
    question = Path(call)
    while not question.exists():
        time.sleep(_WAIT_SECONDS)
    asked: Call = pickle.loads(question.read_bytes())
    try:
        with torch.no_grad():
            _call(*asked)
        text = RETURNED
    except BaseException as error:  # noqa: BLE001 - a process boundary: whatever it is, it is for whoever asked
        text = described(error)
    Path(told).write_text(text, encoding="utf-8")


def _call(spec: SandboxSpec, sizes: Sizes, mode: Mode) -> None:
    loaded = spec.open(Watch())
    assert loaded.make is not None, "a reference is not watched"
    source = loaded.source(sizes)
    model = loaded.make(source, mode, None)
    inputs = source.inputs(1)
    if model.ready(inputs) is None:
        model.call(inputs, _PLAIN)
        synchronise(loaded.device)
