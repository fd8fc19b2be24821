"""Outputs that are tuples, lists and dictionaries."""

from tests.gate_files.entry import PROBLEM, forward, problem, right
from tests.gate_files.references import DRAWN, ROWS

_right = right("structures")


def _rows(body: str) -> str:
    return problem(body, inputs=DRAWN, constants=ROWS)


FILES = (
    _right("two tensors", _rows("return x + 1, x * 2"), forward("return torch.add(x, 1), x + x")),
    _right("a list", _rows("return [x + 1, x.sum(dim=1)]"), forward("return [1 + x, x.sum(dim=-1)]")),
    _right(
        "a dictionary",
        _rows("return {'sum': x.sum(dim=1), 'double': 2 * x}"),
        forward("return {'sum': x.sum(dim=-1), 'double': x + x}"),
    ),
    _right(
        "a structure within another",
        _rows("return x * 2, {'parts': [x + 1, (x - 1, x.mean(dim=0))]}"),
        forward("return x + x, {'parts': [1 + x, (x - 1, x.mean(dim=0))]}"),
    ),
    _right("a tensor and nothing", _rows("return x * 2, None"), forward("return x + x, None")),
    _right("a tensor and a number", _rows("return x * 2, 0.5, x.shape[0]"), forward("return x + x, 0.5, x.shape[0]")),
    _right(
        "greatest numbers and where they are",
        _rows("return x.max(dim=1)"),
        forward("return x.amax(dim=1), x.argmax(dim=1)"),
        PROBLEM,
    ),
    _right(
        "a stable order",
        _rows("return torch.sort(x, dim=1, stable=True)"),
        forward("return x.sort(dim=-1, stable=True)"),
    ),
    _right(
        "pooling with indices",
        problem(
            "return F.max_pool2d(x, 2, return_indices=True)",
            inputs="torch.rand(batch, channels, size, size)",
            constants="batch = 2\nchannels = 3\nsize = 8",
        ),
        forward("return F.max_pool2d_with_indices(x, (2, 2))"),
    ),
)
