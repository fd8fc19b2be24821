"""Files that are right but under one condition: a mode, a type, a value, a size."""

from __future__ import annotations

from tests.gate_files.entry import DROP_IN, forward, problem, wrong

_wrong = wrong("conditions")

_TANH = problem("return torch.tanh(x)", inputs="torch.randn(64, 96)")
_PROJECTED = problem(
    "return F.softmax(self.linear(x), -1)", inputs="torch.randn(32, 48)", init="self.linear = nn.Linear(48, 24)"
)
_SQUARES = problem("return x.square().sum(-1)", inputs="torch.randn(32, 64)")

FILES = (
    _wrong(
        "takes the batch's statistics in evaluation too",
        problem(
            "return self.norm(x)",
            inputs="torch.randn(64, 32) * 2 + 1",
            init="self.norm = nn.BatchNorm1d(32)",
        ),
        forward(
            """\
            if self.training:
                return self.norm(x)
            return F.batch_norm(x, None, None, self.norm.weight, self.norm.bias, True)
            """
        ),
        DROP_IN,
    ),
    _wrong(
        "goes by way of float32 for doubles",
        problem("return torch.erf(x) * x", inputs="torch.randn(64, 96)"),
        forward("return (torch.erf(x.float()) * x.float()).to(x.dtype)"),
        DROP_IN,
    ),
    _wrong(
        "another axis where nothing is masked",
        problem(
            "return x.masked_fill(~mask, float('-inf')).softmax(-1)",
            arguments="x, mask",
            inputs="torch.randn(16, 24), torch.rand(16, 24) < 0.8",
        ),
        forward(
            """\
            if mask.all():
                return x.softmax(0)
            return x.masked_fill(~mask, float("-inf")).softmax(-1)
            """,
            arguments="x, mask",
        ),
    ),
    _wrong(
        "divides by the other number of rows",
        problem(
            "return x @ y.t() / y.shape[0]",
            arguments="x, y",
            constants="ROWS = 48\nOTHERS = 48\nCOLUMNS = 32",
            inputs="torch.randn(ROWS, COLUMNS), torch.randn(OTHERS, COLUMNS)",
        ),
        forward("return x @ y.t() / x.shape[0]", arguments="x, y"),
        DROP_IN,
    ),
    _wrong(
        "a gradient in pairs of columns",
        _SQUARES,
        forward(
            "return _Squares.apply(x)",
            before="""\
            class _Squares(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x):
                    ctx.save_for_backward(x)
                    return x.square().sum(-1)

                @staticmethod
                def backward(ctx, grad):
                    (x,) = ctx.saved_tensors
                    whole = x.shape[-1] // 2 * 2
                    into = torch.zeros_like(x)
                    into[..., :whole] = 2 * x[..., :whole] * grad[..., None]
                    return into
            """,
        ),
        DROP_IN,
    ),
    _wrong(
        "sums integers in 32 bits",
        problem("return x.sum(-1)", inputs="torch.randint(0, 2**24, (64, 100), dtype=torch.int32)"),
        forward("return x.sum(-1, dtype=torch.int32).long()"),
    ),
    _wrong(
        "clamps by comparisons that NaN fails",
        problem("return F.relu6(x)", inputs="torch.randn(64, 96) * 4"),
        forward("return torch.where(x > 0, torch.where(x < 6, x, 6.0), 0.0).to(x.dtype)"),
        DROP_IN,
    ),
    _wrong(
        "the last of equal maxima",
        problem("return x.argmax(-1)", inputs="torch.randn(64, 96)"),
        forward("return x.shape[-1] - 1 - x.flip(-1).argmax(-1)"),
    ),
    _wrong(
        "squares in half precision",
        problem("return x.float().norm(dim=-1).to(x.dtype)", inputs="torch.randn(64, 96)"),
        forward("return x.square().sum(-1).sqrt()"),
        DROP_IN,
    ),
    _wrong(
        "nothing for an input of zeros",
        _PROJECTED,
        forward(
            """\
            if not x.any():
                return x.new_zeros(*x.shape[:-1], self.linear.out_features)
            return F.softmax(F.linear(x, self.linear.weight, self.linear.bias), -1)
            """
        ),
    ),
    _wrong(
        "a thousand rows at most",
        problem("return x.softmax(-1)", constants="ROWS = 512\nCOLUMNS = 24", inputs="torch.randn(ROWS, COLUMNS)"),
        forward(
            """\
            out = torch.zeros_like(x)
            for start in range(0, min(len(x), 1024), 128):
                out[start : start + 128] = x[start : start + 128].softmax(-1)
            return out
            """
        ),
        DROP_IN,
    ),
    _wrong(
        "a straight line for small inputs",
        _TANH,
        forward(
            """\
            if x.abs().max() < 0.25:
                return x.clone()
            return torch.tanh(x)
            """
        ),
    ),
    _wrong(
        "every sequence in full length",
        problem(
            """\
            inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
            return torch.where(inside[..., None], x, 0.0).sum(1)
            """,
            arguments="x, lengths",
            inputs="torch.randn(8, 20, 12), torch.full((8,), 20)",
        ),
        forward("return x.sum(1)", arguments="x, lengths"),
    ),
)
