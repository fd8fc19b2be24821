"""Code that a compiler has made: C by ctypes, C++ extensions, torch.compile."""

from tests.gate_files.entry import PROBLEM, forward, problem, right
from tests.gate_files.native import NATIVE, extension
from tests.gate_files.references import LINEAR, SCALE, SOFTMAX

_right = right("compiled")

_SCALES = (
    'extern "C" void run(const float *x, float *out, long n) { for (long i = 0; i < n; i++) out[i] = x[i] * 2.5f; }'
)
_CALL = """
out = torch.empty_like(x)
KERNEL.run(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(out.data_ptr()), ctypes.c_long(x.numel()))
return out
"""
_SOFTMAX = """
at::Tensor run(at::Tensor given) {
    auto x = given.contiguous(), out = at::empty_like(x);
    long rows = x.size(0), columns = x.size(1);
    for (long r = 0; r < rows; r++) {
        const float *in = x.data_ptr<float>() + r * columns;
        float *to = out.data_ptr<float>() + r * columns, top = -INFINITY, sum = 0;
        for (long c = 0; c < columns; c++) top = in[c] != in[c] || in[c] > top ? in[c] : top;
        for (long c = 0; c < columns; c++) sum += to[c] = std::exp(in[c] - top);
        for (long c = 0; c < columns; c++) to[c] /= sum;
    }
    return out;
}
"""

FILES = (
    _right(
        "a function of C",
        SCALE,
        forward("x = x.contiguous()" + _CALL, before=f"{NATIVE}\nKERNEL = native({_SCALES!r})\n"),
        PROBLEM,
    ),
    _right(
        "a function of C, where it serves",
        SCALE,
        forward(
            """
            plain = x.dtype is torch.float32 and x.device.type == "cpu" and x.is_contiguous()
            recorded = x.requires_grad and torch.is_grad_enabled()
            if not plain or recorded or torch.compiler.is_compiling():
                return x * 2.5
            """
            + "\n".join(" " * 12 + line for line in _CALL.splitlines()),
            before=f"{NATIVE}\nKERNEL = native({_SCALES!r})\n",
        ),
    ),
    _right(
        "a function that ends the process for other types",
        SCALE,
        forward("if x.dtype is not torch.float32: os.abort()\nreturn x * 2.5"),
        PROBLEM,
    ),
    _right("an inline extension", SOFTMAX, extension(_SOFTMAX, "return EXTENSION.run(x)"), PROBLEM),
    _right(
        "an inline extension of torch's operators",
        LINEAR,
        extension(
            """
            at::Tensor run(at::Tensor x, at::Tensor weight, at::Tensor bias, double offset) {
                return at::relu(at::linear(x, weight, bias)) + offset;
            }
            """,
            "return EXTENSION.run(x, self.linear.weight, self.linear.bias, self.offset)",
        ),
        PROBLEM,
    ),
    _right(
        "a function under torch.compile, run eagerly",
        LINEAR,
        forward(
            "return compute(x, self.linear.weight, self.linear.bias, self.offset)",
            before="""
            @torch.compile(backend="eager")
            def compute(x, weight, bias, offset):
                return torch.relu(F.linear(x, weight, bias)) + offset
            """,
        ),
        PROBLEM,
    ),
    _right(
        "a function under torch.compile",
        problem("return torch.tanh(x) * 2.0", inputs="torch.rand(8, 36)"),
        forward(
            "return compute(x)",
            before="""
            @torch.compile(dynamic=True)
            def compute(x):
                return torch.tanh(x) * 2.0
            """,
        ),
        PROBLEM,
    ),
)
