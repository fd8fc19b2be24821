"""Habits of honest files: what they do beside their work, and how they write it down."""

from tests.gate_files.entry import PROBLEM, forward, problem, right
from tests.gate_files.references import DRAWN, LINEAR, ROWS, SCALE, TANH

_right = right("habits")

_RELU = "return self.linear(x).relu() + self.offset"


def _inputs(inputs: str) -> str:
    return problem("return torch.tanh(x)", inputs=inputs, constants=ROWS)


_TANH = forward("return x.tanh()")

FILES = (
    _right(
        "sets variables for compilers",
        LINEAR,
        forward(_RELU, before="os.environ['TORCH_CUDA_ARCH_LIST'] = '9.0'\nos.environ['CUDA_LAUNCH_BLOCKING'] = '0'"),
    ),
    _right("silences warnings", LINEAR, forward(_RELU, before="import warnings\nwarnings.filterwarnings('ignore')")),
    _right("prints as it is called", LINEAR, forward("print('[{\"passed\": false}]')\n" + _RELU)),
    _right(
        "tests itself when it is run",
        LINEAR,
        forward(_RELU) + "\nif __name__ == '__main__':\n    raise SystemExit(1)\n",
    ),
    _right(
        "scales that torch.jit has compiled",
        SCALE,
        forward(
            "return scaled(x)",
            before="""
            def _scaled(x: torch.Tensor) -> torch.Tensor:
                return x * 2.5

            scaled = torch.jit.trace(_scaled, torch.rand(2, 2))
            """,
        ),
        PROBLEM,
    ),
    _right(
        "a gradient of its own",
        TANH,
        forward(
            "return Tanh.apply(x)",
            before="""
            class Tanh(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x):
                    y = torch.tanh(x)
                    ctx.save_for_backward(y)
                    return y

                @staticmethod
                def backward(ctx, grad):
                    (y,) = ctx.saved_tensors
                    return grad * (1 - y * y)
            """,
        ),
    ),
    _right(
        "an operator of its own",
        SCALE,
        forward(
            "return scaled(x)",
            before="""
            @torch.library.custom_op("gate_file::scaled", mutates_args=())
            def scaled(x: torch.Tensor) -> torch.Tensor:
                return x * 2.5

            @scaled.register_fake
            def _(x):
                return torch.empty_like(x)
            """,
        ),
        PROBLEM,
    ),
    _right(
        "threads of its own, which end",
        SCALE,
        forward(
            """
            out = torch.empty_like(x)
            given = x.detach()
            parts = [threading.Thread(target=lambda i=i: out[i::2].copy_(given[i::2] * 2.5)) for i in range(2)]
            for part in parts: part.start()
            for part in parts: part.join()
            return out
            """
        ),
        PROBLEM,
    ),
    _right("inputs that are transposed", _inputs("torch.rand(features, batch).t()"), _TANH),
    _right("inputs that need gradients", _inputs(f"{DRAWN}.requires_grad_()"), _TANH),
    _right("inputs that are expanded", _inputs("torch.rand(1, features).expand(batch, features)"), _TANH),
    _right(
        "inputs by numpy", _inputs("torch.from_numpy(__import__('numpy').random.rand(batch, features)).float()"), _TANH
    ),
    _right(
        "inputs in a tuple",
        _inputs(DRAWN).replace("return [torch.rand(batch, features)]", "return (torch.rand(batch, features),)"),
        _TANH,
    ),
    _right(
        "one number in, one number out",
        problem("return torch.exp(x)", inputs="torch.rand(())"),
        forward("return x.exp()"),
    ),
    _right(
        "made of a list and a tuple",
        problem(
            "return x @ self.weight + self.bias",
            init="self.weight = nn.Parameter(torch.rand(*sizes))\nself.bias = nn.Parameter(torch.rand(shape))",
            made_of="sizes, shape",
            given="[features, 16], (16,)",
            inputs=DRAWN,
            constants=ROWS,
        ),
        forward("return torch.addmm(self.bias, x, self.weight)"),
        PROBLEM,
    ),
    _right(
        "conjugates, as the reference's",
        problem("return torch.fft.fft(x, dim=1).conj()", inputs=DRAWN, constants=ROWS),
        forward("return torch.conj(torch.fft.fft(x))"),
        PROBLEM,
    ),
    _right(
        "a sign that torch turns later",
        problem("return -(x * 2)", inputs=DRAWN, constants=ROWS),
        forward("return torch._neg_view(x + x)"),
        PROBLEM,
    ),
)
