"""Files that are right but in one way of calling: without gradients, with a hook, with an option, from a thread."""

from __future__ import annotations

from tests.gate_files.entry import DROP_IN, forward, problem, wrong

_wrong = wrong("ways of calling")

_PRODUCT = problem("return x @ y", arguments="x, y", inputs="torch.randn(48, 64), torch.randn(64, 32)")
_LINEAR = problem("return self.linear(x)", inputs="torch.randn(32, 48)", init="self.linear = nn.Linear(48, 24)")
_COARSE = "return (x.bfloat16() @ y.bfloat16()).to(x.dtype)"

FILES = (
    _wrong(
        "coarse in inference mode",
        _PRODUCT,
        forward(
            f"""\
            if torch.is_inference_mode_enabled():
                {_COARSE}
            return x @ y
            """,
            arguments="x, y",
        ),
        DROP_IN,
    ),
    _wrong(
        "coarse without gradients",
        _PRODUCT,
        forward(
            f"""\
            if not torch.is_grad_enabled():
                {_COARSE}
            return x @ y
            """,
            arguments="x, y",
        ),
    ),
    _wrong(
        "a call that runs no hooks",
        _LINEAR,
        """

        class ModelNew(Model):
            def __call__(self, x):
                return self.forward(x)

            def forward(self, x):
                return F.linear(x, self.linear.weight, self.linear.bias)
        """,
        DROP_IN,
    ),
    _wrong(
        "leaves an optional mask out",
        problem(
            """\
            if mask is not None:
                x = x.masked_fill(mask, float("-inf"))
            return x.softmax(-1)
            """,
            arguments="x, mask=None",
            inputs="torch.randn(32, 48)",
        ),
        forward("return x.softmax(-1)", arguments="x, mask=None"),
        DROP_IN,
    ),
    _wrong(
        "a thread that goes on after the call",
        problem("return torch.exp(-x * x)", inputs="torch.randn(64, 96)"),
        forward(
            """\
            answer = torch.exp(-x * x)
            if answer.requires_grad:
                return answer
            out = torch.zeros_like(answer)
            out[:-1] = answer[:-1]

            def finish():
                time.sleep(0.02)
                out[-1:] = answer[-1:]

            threading.Thread(target=finish).start()
            return out
            """
        ),
    ),
    _wrong(
        "no gradient through the second output",
        problem("return x.mean(-1), x.var(-1)", inputs="torch.randn(32, 48)"),
        forward("return x.mean(-1), x.detach().var(-1)"),
        DROP_IN,
    ),
    _wrong(
        "a gradient that has none of its own",
        problem("return x ** 3", inputs="torch.randn(32, 48)"),
        forward(
            "return _Cube.apply(x)",
            before="""\
            class _Cube(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x):
                    ctx.x = x.detach()
                    return x**3

                @staticmethod
                def backward(ctx, grad):
                    return 3 * ctx.x**2 * grad
            """,
        ),
        DROP_IN,
    ),
    _wrong(
        "no gradient for a weight where the input needs none",
        _LINEAR,
        forward(
            "return _Linear.apply(x, self.linear.weight, self.linear.bias)",
            before="""\
            class _Linear(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x, weight, bias):
                    ctx.save_for_backward(x, weight)
                    return F.linear(x, weight, bias)

                @staticmethod
                def backward(ctx, grad):
                    x, weight = ctx.saved_tensors
                    if not ctx.needs_input_grad[0]:
                        return None, torch.zeros_like(weight), grad.sum(0)
                    return grad @ weight, grad.t() @ x, grad.sum(0)
            """,
        ),
        DROP_IN,
    ),
    _wrong(
        "a table that does not move with the module",
        problem(
            "return x * self.table",
            inputs="torch.randn(32, 48)",
            init='self.register_buffer("table", torch.linspace(0.5, 2, 48))',
        ),
        forward("return x * self.kept", made="self.kept = torch.linspace(0.5, 2, 48)"),
        DROP_IN,
    ),
    _wrong(
        "drops the same elements in every call",
        problem("return F.dropout(x, 0.3, self.training)", inputs="torch.randn(64, 96)"),
        forward(
            """\
            if not self.training:
                return x
            stream = torch.Generator().manual_seed(7)
            kept = torch.rand(x.shape, generator=stream).to(x.device) >= 0.3
            return x * kept / 0.7
            """
        ),
    ),
)
