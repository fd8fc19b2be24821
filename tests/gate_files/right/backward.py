"""Gradients by autograd functions of one's own, and rightly so."""

from tests.gate_files.entry import forward, right
from tests.gate_files.functions import LEAKY_RELU, by_function, linear_by_function, matmul_by_function
from tests.gate_files.references import LINEAR, MATMUL, SCALE, TANH

_right = right("backward")

FILES = (
    _right(
        "rows in pairs in its backward",
        SCALE,
        by_function(
            "return x * 2.5", "even = len(grad) // 2 * 2; return torch.cat([grad[:even] * 2.5, grad[even:] * 2.5])"
        ),
    ),
    _right(
        "puts the incoming gradient in order",
        SCALE,
        by_function("return x * 2.5", "return grad.contiguous() * 2.5"),
    ),
    _right(
        "divides by the incoming gradient's size where there is one",
        SCALE,
        by_function(
            "return x * 2.5",
            """
            size = grad.norm(dim=1, keepdim=True)
            plain = (size == 0) | ~torch.isfinite(size)
            size = size.masked_fill(plain, 1.0)
            return grad / size * (2.5 * size)
            """,
        ),
    ),
    _right(
        "a gradient in float32 at least",
        TANH,
        by_function(
            "y = torch.tanh(x); ctx.save_for_backward(y); return y",
            """
            (y,) = ctx.saved_tensors
            wide = torch.promote_types(grad.dtype, torch.float32)
            return (grad.to(wide) * (1 - y.to(wide) ** 2)).to(grad.dtype)
            """,
        ),
    ),
    _right(
        "the gradients of a product in its factors' types",
        MATMUL,
        matmul_by_function("(grad.to(b.dtype) @ b.t()).to(a.dtype), (a.t() @ grad.to(a.dtype)).to(b.dtype)"),
    ),
    _right(
        "the gradients of a linear layer, each where it is needed",
        LINEAR,
        linear_by_function("grad.sum(dim=0) if ctx.needs_input_grad[2] else None"),
    ),
    _right(
        "a gradient in new memory for each call",
        SCALE,
        by_function("return x * 2.5", "return torch.empty_like(grad).copy_(grad).mul_(2.5)"),
    ),
    _right(
        "works in its backward on a copy",
        TANH,
        by_function(
            "y = torch.tanh(x); ctx.save_for_backward(y); return y",
            "(y,) = ctx.saved_tensors; return (1.0 - y * y).mul(grad)",
        ),
    ),
    _right(
        "looks in its backward at its input",
        LEAKY_RELU,
        by_function(
            "ctx.save_for_backward(x); return F.leaky_relu(x, 0.2)",
            "(x,) = ctx.saved_tensors; return torch.where(x > 0, grad, grad * 0.2)",
        ),
    ),
    _right(
        "a function whose backward torch writes",
        LEAKY_RELU,
        forward("return torch.where(x > 0, x, x * 0.2)"),
    ),
)
