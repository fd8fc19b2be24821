"""Where tensors lie in memory: right for dense inputs in the usual order, wrong or an error for others."""

from tests.gate_files.entry import DROP_IN, GateFile, forward, problem, wrong
from tests.gate_files.references import BARE, CONV, DRAWN, GROUP_NORM, LINEAR, MATMUL, ROW_SUMS, ROWS, SCALE

_wrong = wrong("layouts")


def _layouts(name: str, reference: str, body: str, **more: str) -> GateFile:
    return _wrong(name, reference, forward(body, **more), DROP_IN)


FILES = (
    _layouts(
        "takes any strides for dense",
        SCALE,
        """
        strides = [1]
        for size in reversed(x.shape[1:]):
            strides.insert(0, strides[0] * size)
        return x.as_strided(x.shape, strides) * 2.5
        """,
    ),
    _layouts("flattens with view", ROW_SUMS, "return x.view(-1).view(x.shape).sum(dim=1)"),
    _layouts(
        "looks at the last stride only",
        BARE,
        """
        if x.stride(-1) != 1:
            x = x.contiguous()
        return torch.tanh(x.as_strided(x.shape, (x.shape[1], 1))) * 2.0
        """,
    ),
    _layouts(
        "takes a transposed factor for one that is not",
        MATMUL,
        "return a @ b.as_strided(b.shape, (b.shape[1], 1), b.storage_offset())",
        arguments="a, b",
    ),
    _layouts(
        "refuses what is not dense",
        LINEAR,
        "if not x.is_contiguous():\n    raise ValueError('contiguous inputs only')\nreturn super().forward(x)",
    ),
    _layouts(
        "gives images in channels last another layout",
        GROUP_NORM,
        "return F.group_norm(x.contiguous(), self.norm.num_groups, self.norm.weight, self.norm.bias, self.norm.eps)"
        ".contiguous()",
    ),
    _layouts(
        "takes filters in channels last for dense ones",
        CONV,
        """
        weight = self.conv.weight
        dense = weight.as_strided(weight.shape, torch.empty(weight.shape, device="meta").stride())
        return torch.relu(F.conv2d(x, dense, self.conv.bias, padding=1))
        """,
    ),
    _layouts(
        "an output in another order, undeclared",
        problem("return torch.tanh(x)", inputs="torch.rand(2, 3, 6, 6)"),
        "return torch.tanh(x).contiguous(memory_format=torch.channels_last)",
    ),
    _layouts("a transposed output", SCALE, "return (x * 2.5).t().contiguous().t()"),
    _layouts(
        "needs sixteen bytes of alignment",
        BARE,
        "if x.data_ptr() % 16:\n    raise RuntimeError('misaligned address')\nreturn torch.tanh(x) * 2.0",
    ),
    _layouts(
        "rounds its pointer to sixteen bytes",
        problem("return x.sum(dim=0)", inputs=DRAWN, constants=ROWS),
        """
        away = x.data_ptr() % 16 // x.element_size()
        return x.as_strided(x.shape, x.stride(), max(0, x.storage_offset() - away)).sum(dim=0)
        """,
    ),
)
