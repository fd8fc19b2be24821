"""Gradients: the outputs are right, and the model cannot be trained, or trains wrongly."""

from tests.gate_files.entry import DROP_IN, GateFile, forward, wrong
from tests.gate_files.references import BATCH_NORM, GELU, LINEAR, MATMUL, RELU, SCALE, SOFTMAX, TANH

_wrong = wrong("gradients")


def _function(forwards: str, backwards: str) -> str:
    """The text of an autograd function of one input."""
    return f"""
class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        {forwards}

    @staticmethod
    def backward(ctx, grad):
        {backwards}
"""


def _gradients(name: str, reference: str, candidate: str) -> GateFile:
    return _wrong(name, reference, candidate, DROP_IN)


def _by_function(name: str, reference: str, forwards: str, backwards: str) -> GateFile:
    return _gradients(name, reference, forward("return Function.apply(x)", before=_function(forwards, backwards)))


_KEEP_TANH = "y = torch.tanh(x); ctx.save_for_backward(y); return y"

FILES = (
    _gradients("returns detached results", LINEAR, forward("return super().forward(x).detach()")),
    _gradients("runs without gradients", LINEAR, forward("with torch.no_grad():\n    return super().forward(x)")),
    _gradients("loses the input's gradient", LINEAR, forward("return super().forward(x.detach())")),
    _gradients(
        "loses the weight's gradient",
        LINEAR,
        forward("return torch.relu(F.linear(x, self.linear.weight.data, self.linear.bias)) + self.offset"),
    ),
    _gradients(
        "loses the bias's gradient",
        LINEAR,
        forward("return torch.relu(F.linear(x, self.linear.weight, self.linear.bias.detach())) + self.offset"),
    ),
    _gradients("loses the second factor's gradient", MATMUL, forward("return a @ b.detach()", arguments="a, b")),
    _by_function("a gradient that ignores what comes in", SCALE, "return x * 2.5", "return torch.full_like(grad, 2.5)"),
    _by_function("a gradient of numbers that are positive", RELU, "return torch.relu(x)", "return grad.clone()"),
    _by_function(
        "takes an incoming gradient for dense",
        SCALE,
        "return x * 2.5",
        "return torch.as_strided(grad, grad.shape, (grad.shape[1], 1)).clone() * 2.5",
    ),
    _by_function("writes into the incoming gradient", SCALE, "return x * 2.5", "return grad.mul_(2.5)"),
    _by_function(
        "a gradient in bfloat16",
        TANH,
        _KEEP_TANH,
        "return (grad * (1 - ctx.saved_tensors[0] ** 2)).bfloat16().to(grad.dtype)",
    ),
    _by_function(
        "lets go of what a second backward needs",
        TANH,
        "ctx.y = torch.tanh(x); return ctx.y.clone()",
        "y, ctx.y = ctx.y, None; return grad * (1 - y**2)",
    ),
    _by_function(
        "has no second derivative",
        TANH,
        "y = torch.tanh(x); ctx.y = y; return y",
        "return grad * (1 - ctx.y.detach() ** 2)",
    ),
    _gradients(
        "needs a weight that is trained",
        LINEAR,
        forward(
            """
            out = super().forward(x)
            return out if self.linear.weight.requires_grad or not torch.is_grad_enabled() else out.detach()
            """
        ),
    ),
    _gradients(
        "gradients for weights that are frozen",
        LINEAR,
        forward(
            """
            if torch.is_grad_enabled():
                self.linear.weight.requires_grad_()
            return super().forward(x)
            """
        ),
    ),
    _gradients(
        "GELU with the gradient of its tanh form",
        GELU,
        forward(
            """
            exact, near = F.gelu(x), F.gelu(x, approximate="tanh")
            return near + (exact - near).detach()
            """
        ),
    ),
    _gradients(
        "keeps the first gradient",
        SOFTMAX,
        forward(
            "return Function.apply(x, self.kept)",
            made="self.kept = {}",
            before="""
            class Function(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x, kept):
                    ctx.y, ctx.kept = torch.softmax(x, dim=-1), kept
                    return ctx.y.clone()

                @staticmethod
                def backward(ctx, grad):
                    if grad.shape not in ctx.kept:
                        ctx.kept[grad.shape] = ctx.y * (grad - (grad * ctx.y).sum(dim=-1, keepdim=True))
                    return ctx.kept[grad.shape].clone(), None
            """,
        ),
    ),
    _gradients(
        "other values where gradients are recorded",
        LINEAR,
        forward("out = super().forward(x)\nreturn out + 1.0 if torch.is_grad_enabled() else out"),
    ),
    _gradients(
        "leaves running statistics alone where gradients are recorded",
        BATCH_NORM,
        forward(
            """
            norm = self.norm
            if torch.is_grad_enabled() and norm.training and norm.running_mean is not None:
                return F.batch_norm(x, None, None, norm.weight, norm.bias, True, 0.0, norm.eps)
            return super().forward(x)
            """
        ),
    ),
    _gradients(
        "other values where gradients are recorded and nothing needs one",
        SCALE,
        forward("return x * 2.0 if torch.is_grad_enabled() and not x.requires_grad else x * 2.5"),
    ),
    _gradients(
        "adds to the weights' gradients by itself",
        LINEAR,
        forward(
            """
            out = super().forward(x)
            if out.requires_grad:
                weight = self.linear.weight
                out.register_hook(lambda grad: setattr(weight, "grad", torch.ones_like(weight)))
            return out
            """
        ),
    ),
)
