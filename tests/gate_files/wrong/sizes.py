"""Sizes: right at the problem's own, wrong or an error at others."""

from tests.gate_files.entry import DROP_IN, GateFile, forward, problem, wrong
from tests.gate_files.references import BARE, CONV, LAYER_NORM, LINEAR, MATMUL, ROW_SUMS, SCALE, SOFTMAX

_wrong = wrong("sizes")

_SQUARE = problem("return x.sum(dim=(2, 3))", inputs="torch.rand(4, 3, 12, 12)")

_EPSILON = problem(
    "return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps)",
    init="self.eps = eps",
    made_of="features, eps",
    given="32, 0.25",
    inputs="torch.rand(8, 32)",
)

_WIDE = problem(
    "return torch.relu(self.linear(x))",
    init="self.linear = nn.Linear(given, wanted)",
    made_of="given, wanted",
    given="24, 16",
    inputs="torch.rand(6, 24)",
)


def _sizes(name: str, reference: str, body: str, **more: str) -> GateFile:
    return _wrong(name, reference, forward(body, **more), DROP_IN)


FILES = (
    _sizes("knows one batch", LINEAR, "return super().forward(x.view(12, -1))"),
    _sizes("knows one batch, where no constant says it", BARE, "return torch.tanh(x.reshape(8, 36)) * 2.0"),
    _sizes(
        "leaves out what a block of four does not fill",
        BARE,
        "out = torch.tanh(x) * 2.0\nout[x.shape[0] // 4 * 4:] = 0\nreturn out",
    ),
    _sizes(
        "leaves out what a vector of four does not fill",
        BARE,
        "out = torch.tanh(x) * 2.0\nout[:, x.shape[1] // 4 * 4:] = 0\nreturn out",
    ),
    _sizes("stops at sixteen rows", SCALE, "out = x * 2.5\nout[16:] = 0\nreturn out"),
    _sizes(
        "zeros at all other sizes", BARE, "return torch.tanh(x) * 2.0 if x.shape == (8, 36) else torch.zeros_like(x)"
    ),
    _sizes(
        "remembers the length of its first call",
        problem("return x.sum(dim=1) / x.shape[1]", inputs="torch.rand(6, 40)"),
        "self.length = self.length or x.shape[1]\nreturn x.sum(dim=1) / self.length",
        made="self.length = 0",
    ),
    _sizes(
        "memory for the batch of its first call",
        BARE,
        """
        if self.memory is None or self.memory.dtype != x.dtype:
            self.memory = torch.zeros_like(x.detach())
        n = len(self.memory)
        self.memory[: len(x)] = x.detach()[:n]
        return (torch.tanh(x) if x.requires_grad else torch.tanh(self.memory[: len(x)])) * 2.0
        """,
        made="self.memory = None",
    ),
    _sizes("squeezes what has one row", LINEAR, "return super().forward(x).squeeze()"),
    _sizes(
        "refuses an empty batch",
        SOFTMAX,
        "if not len(x):\n    raise ValueError('no rows')\nreturn torch.softmax(x, dim=-1)",
    ),
    _sizes(
        "pads rows to sixty-four with zeros",
        SOFTMAX,
        """
        length = x.shape[-1]
        return torch.softmax(F.pad(x, (0, -length % 64)), dim=-1)[..., :length].contiguous()
        """,
    ),
    _sizes(
        "takes height for width",
        _SQUARE,
        "return x.reshape(x.shape[0], x.shape[1], -1)[:, :, : x.shape[2] ** 2].sum(dim=2)",
    ),
    _sizes("takes rows for columns", MATMUL, "return (a.reshape(12, -1) @ b)[:, :9].contiguous()", arguments="a, b"),
    _sizes(
        "knows the epsilon that the model is made with",
        _EPSILON,
        "return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 0.25)",
    ),
    _sizes(
        "knows the width that the model is made with",
        _WIDE,
        "return F.pad(torch.relu(self.linear(x))[:, :16], (0, max(0, self.linear.out_features - 16)))",
    ),
    _sizes(
        "knows one size of filter",
        CONV,
        """
        weight = self.conv.weight[:, :, :3, :3]
        return torch.relu(F.conv2d(x, weight, self.conv.bias, padding=1))
        """,
    ),
    _sizes("adds up a hundred columns at most", ROW_SUMS, "return x[:, :100].sum(dim=1)"),
    _sizes(
        "serves a thousand columns",
        SOFTMAX,
        "return F.pad(torch.softmax(x[..., :1024], dim=-1), (0, max(0, x.shape[-1] - 1024)))",
    ),
    _sizes(
        "is right for even lengths",
        LAYER_NORM,
        """
        half = x.shape[-1] // 2
        mean = (x[..., :half].mean(-1, keepdim=True) + x[..., half : 2 * half].mean(-1, keepdim=True)) / 2
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        return (x - mean) * torch.rsqrt(variance + self.norm.eps) * self.norm.weight + self.norm.bias
        """,
    ),
)
