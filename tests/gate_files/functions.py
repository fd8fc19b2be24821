"""Models whose forward is an autograd function of their own."""

from tests.gate_files.entry import forward, indented, problem
from tests.gate_files.references import DRAWN, ROWS

LEAKY_RELU = problem("return F.leaky_relu(x, 0.2)", inputs=f"{DRAWN} - 0.5", constants=ROWS)


def by_function(forwards: str, backwards: str) -> str:
    """A function of one input.

    Args:
        forwards: the lines of its forward.
        backwards: those of its backward, which is given `grad`.
    """
    return forward("return Function.apply(x)", before=_function("x", forwards, backwards))


def matmul_by_function(backwards: str) -> str:
    """A product of two matrices `a` and `b`.

    Args:
        backwards: the expressions of both gradients.
    """
    body = f"a, b = ctx.saved_tensors\nreturn {backwards}"
    function = _function("a, b", "ctx.save_for_backward(a, b)\nreturn a @ b", body)
    return forward("return Function.apply(a, b)", arguments="a, b", before=function)


def linear_by_function(bias: str) -> str:
    """A linear layer with ReLU and an offset.

    Args:
        bias: the expression of the bias's gradient.
    """
    body = f"""
    x, weight = ctx.saved_tensors
    to_x = grad @ weight if ctx.needs_input_grad[0] else None
    to_weight = grad.t() @ x if ctx.needs_input_grad[1] else None
    return to_x, to_weight, {bias}
    """
    function = _function("x, weight, bias", "ctx.save_for_backward(x, weight)\nreturn F.linear(x, weight, bias)", body)
    return forward(
        """
        if torch.is_autocast_enabled(x.device.type):
            return super().forward(x)
        return torch.relu(Function.apply(x, self.linear.weight, self.linear.bias)) + self.offset
        """,
        before=function,
    )


def _function(arguments: str, forwards: str, backwards: str) -> str:
    return f"""
class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, {arguments}):
{indented(forwards)}
    @staticmethod
    def backward(ctx, grad):
{indented(backwards)}
"""
