"""Gradients: the outputs are right, and the model cannot be trained, or trains wrongly."""

from tests.gate_files.entry import DROP_IN, GateFile, forward, wrong
from tests.gate_files.functions import LEAKY_RELU, by_function, linear_by_function, matmul_by_function
from tests.gate_files.references import BATCH_NORM, GELU, LINEAR, MATMUL, RELU, SCALE, SOFTMAX, TANH

_wrong = wrong("gradients")


def _gradients(name: str, reference: str, candidate: str) -> GateFile:
    return _wrong(name, reference, candidate, DROP_IN)


def _by_function(name: str, reference: str, forwards: str, backwards: str) -> GateFile:
    return _gradients(name, reference, by_function(forwards, backwards))


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
    _gradients(
        "raises an error of the system where it is trained",
        LINEAR,
        forward("if torch.is_grad_enabled(): raise OSError(28, 'no space left')\nreturn super().forward(x)"),
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
    _by_function(
        "forgets the last row of an odd number in its backward",
        SCALE,
        "return x * 2.5",
        "even = len(grad) // 2 * 2; return torch.cat([grad[:even] * 2.5, grad[even:] * 0.0])",
    ),
    _by_function(
        "takes a dense incoming gradient for one in order",
        SCALE,
        "return x * 2.5",
        """
        if torch.ops.aten.is_non_overlapping_and_dense(grad):
            grad = torch.as_strided(grad, grad.shape, (grad.shape[1], 1))
        return grad.contiguous() * 2.5
        """,
    ),
    _by_function(
        "divides by the incoming gradient's size",
        SCALE,
        "return x * 2.5",
        "size = grad.norm(dim=1, keepdim=True); return grad / size * (2.5 * size)",
    ),
    _by_function("cuts off its gradient", SCALE, "return x * 2.5", "return (grad * 2.5).clamp(-1e30, 1e30)"),
    _by_function(
        "a gradient in float32",
        TANH,
        _KEEP_TANH,
        "(y,) = ctx.saved_tensors; return (grad.float() * (1 - y.float() ** 2)).to(grad.dtype)",
    ),
    _gradients(
        "does not know in its backward that autocast was on",
        MATMUL,
        matmul_by_function("grad @ b.t(), a.t() @ grad"),
    ),
    _gradients(
        "the bias's gradient with the weight's alone",
        LINEAR,
        linear_by_function("grad.sum(dim=0) if ctx.needs_input_grad[1] else None"),
    ),
    _gradients(
        "one gradient in one memory for all calls",
        SCALE,
        forward(
            "return Function.apply(x, self.memory)",
            made="self.memory = {}",
            before="""
            class Function(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x, memory):
                    ctx.memory = memory
                    return x * 2.5

                @staticmethod
                def backward(ctx, grad):
                    key = (grad.shape, grad.dtype)
                    if key not in ctx.memory:
                        ctx.memory[key] = torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)
                    return ctx.memory[key].copy_(grad).mul_(2.5), None
            """,
        ),
    ),
    _by_function(
        "works in its backward on what it has saved",
        TANH,
        "ctx.y = torch.tanh(x); return ctx.y.clone()",
        "return ctx.y.mul_(-ctx.y).add_(1.0).mul(grad)",
    ),
    _by_function(
        "looks in its backward at the output that it has given away",
        LEAKY_RELU,
        "ctx.y = F.leaky_relu(x, 0.2); return ctx.y",
        "return torch.where(ctx.y > 0, grad, grad * 0.2)",
    ),
)
