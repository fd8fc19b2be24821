"""References that write into what they are given or what they hold."""

from tests.gate_files.entry import forward, problem, right
from tests.gate_files.references import DRAWN, ROWS

_right = right("in place")


def _rows(body: str, **more: str) -> str:
    return problem(body, inputs=DRAWN, constants=ROWS, **more)


FILES = (
    _right("adds to its input", _rows("return x.add_(1.0)"), forward("x += 1.0\nreturn x")),
    _right(
        "doubles its input and returns sums",
        _rows("x.mul_(2)\nreturn x.sum(dim=1)"),
        forward("x.add_(x)\nreturn x.sum(dim=-1)"),
    ),
    _right(
        "rectifies in place what it has made",
        _rows(
            "return F.relu(self.linear(x), inplace=True)",
            init="self.linear = nn.Linear(features, features)",
            made_of="features",
        ),
        forward("return self.linear(x).relu_()"),
    ),
    _right(
        "a running total",
        _rows(
            "self.total += x.detach().sum(dim=0)\nreturn x + self.total",
            init="self.register_buffer('total', torch.zeros(features))",
            made_of="features",
        ),
        forward("self.total.add_(x.detach().sum(dim=0))\nreturn torch.add(x, self.total)"),
    ),
    _right(
        "a count of its calls",
        _rows(
            "self.calls += 1\nreturn x * (self.calls + 2)",
            init="self.register_buffer('calls', torch.zeros((), dtype=torch.int64))",
        ),
        forward("self.calls.add_(1)\nreturn torch.mul(x, self.calls + 2)"),
    ),
)
