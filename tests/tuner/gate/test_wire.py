"""What crosses the boundary arrives as it was sent, and nothing that a hostile writer sends is believed."""

import json
import math
from multiprocessing import Pipe

import pytest
import torch

from tunebench.tuner.gate.boundary.wire import WireError, receive, send
from tunebench.tuner.gate.memory import same_bits

MOST = 1 << 20


def crossed(value: object) -> object:
    ours, theirs = Pipe()
    send(ours, value)
    return receive(theirs, MOST)


@pytest.mark.parametrize(
    "value", [None, True, 3, "text", (1, [2.5, "x"]), {"a": (), "b": {"tensor": 1}}, torch.float16]
)
def test_plain_values_arrive_as_they_were_sent(value: object) -> None:
    got = crossed(value)
    assert got == value and type(got) is type(value)


def test_numbers_that_are_not_finite_arrive() -> None:
    got = crossed((math.inf, -math.inf, math.nan))
    assert isinstance(got, tuple)
    assert got[:2] == (math.inf, -math.inf) and math.isnan(got[2])


TENSORS = {
    "contiguous": torch.rand(3, 5),
    "transposed": torch.rand(3, 5).t(),
    "every other element": torch.rand(3, 10)[:, ::2],
    "expanded": torch.rand(1, 5).expand(4, 5),
    "off alignment": torch.rand(17)[1:].view(4, 4),
    "channels last": torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "half": torch.rand(4).bfloat16(),
    "whole numbers": torch.arange(7),
    "booleans": torch.tensor([True, False]),
    "complex": torch.rand(3, dtype=torch.complex64),
    "one": torch.tensor(1.5),
    "empty": torch.empty(0, 3),
    "needs a gradient": torch.rand(3, requires_grad=True),
    "NaN": torch.tensor([math.nan, -0.0]),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_keep_bits_layout_and_alignment(name: str) -> None:
    tensor = TENSORS[name]
    got = crossed(tensor)
    assert type(got) is torch.Tensor
    assert (got.dtype, got.shape, got.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert got.requires_grad == tensor.requires_grad
    assert same_bits(got, tensor)
    assert got.data_ptr() % 16 == tensor.storage_offset() * tensor.element_size() % 16 or not tensor.numel()


@pytest.mark.parametrize("value", [object(), {1: 2}, {3}, torch.rand(3).to_sparse(), lambda: 0])
def test_what_cannot_cross_is_refused_before_anything_is_sent(value: object) -> None:
    ours, theirs = Pipe()
    with pytest.raises(WireError, match="cannot be passed on"):
        send(ours, ("first", value))
    assert not theirs.poll()


GOOD = {"tensor": 0, "dtype": "float32", "shape": [2], "stride": [1], "offset": 0, "device": "cpu", "grad": False}


@pytest.mark.parametrize(
    "content",
    [
        {**GOOD, "shape": [3]},
        {**GOOD, "shape": [1 << 40]},
        {**GOOD, "shape": [1 << 40], "stride": [0], "dtype": "float64"},
        {**GOOD, "shape": [-2], "stride": [-1]},
        {**GOOD, "stride": [1, 1]},
        {**GOOD, "stride": [1 << 61]},
        {**GOOD, "offset": 1 << 40},
        {**GOOD, "offset": -1},
        {**GOOD, "shape": [2.0]},
        {**GOOD, "shape": [True, True], "stride": [1, 1]},
        {**GOOD, "tensor": 7},
        {**GOOD, "tensor": "0"},
        {**GOOD, "dtype": "object"},
        {**GOOD, "device": "meta!"},
        {"shape": [2]},
        {"map": [[1, 2, 3]]},
        {"map": 3},
        {"tuple": None},
    ],
)
def test_a_forged_message_is_an_error_and_no_tensor(content: object) -> None:
    ours, theirs = Pipe()
    ours.send_bytes(json.dumps([content, [8], []]).encode())
    ours.send_bytes(bytes(8))
    with pytest.raises(WireError):
        receive(theirs, MOST)


@pytest.mark.parametrize(
    "text", [b"", b"[", b"null", b"[1]", b"[1, 2, 3]", b'[1, ["8"]]', b"[1, [-1]]", b"\x80\x04.", b"[" * 100_000]
)
def test_what_is_no_message_is_an_error(text: bytes) -> None:
    ours, theirs = Pipe()
    ours.send_bytes(text)
    with pytest.raises(WireError):
        receive(theirs, MOST)


def test_a_message_is_not_larger_than_the_reader_takes() -> None:
    ours, theirs = Pipe()
    ours.send_bytes(json.dumps([GOOD, [1 << 50], []]).encode())
    with pytest.raises(WireError, match="larger"):
        receive(theirs, MOST)
