"""Memory: written where it is nobody's, not written where it should be, shared, kept, or not yet written."""

from tests.gate_files.entry import DROP_IN, GateFile, forward, problem, wrong
from tests.gate_files.native import NATIVE, extension
from tests.gate_files.references import DRAWN, LINEAR, ROWS, SCALE, TRIANGLE

_wrong = wrong("memory")


def _kernel(name: str, source: str, reference: str = SCALE, out: str = "torch.empty_like(x)") -> GateFile:
    """A submission whose work a function of C does."""
    lines = f"""
    x, out = x.detach().contiguous(), {out}
    KERNEL.run(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(out.data_ptr()), ctypes.c_long(x.numel()))
    return out
    """
    whole = f'extern "C" void run(float *x, float *out, long n) {{ {source} }}'
    return _wrong(name, reference, forward(lines, before=f"{NATIVE}\nKERNEL = native({whole!r})\n"))


_ALL = "for (long i = 0; i < n; i++) out[i] = x[i] * 2.5f;"

_DIFFERENCES = problem("return F.pad(x, (0, 1))[1:] - x", inputs="torch.rand(length)", constants="length = 97")

_CUT_OFF = """
rows, columns = torch.tril_indices(x.shape[0], x.shape[1])
out = {}
out[rows, columns] = x[rows, columns]
return out
"""


def _triangle(name: str, memory: str) -> GateFile:
    return _wrong(name, TRIANGLE, forward(_CUT_OFF.format(memory), before="import numpy"))


FILES = (
    _kernel("writes past the end of its output", _ALL + "out[n] = 0;"),
    _kernel("writes before the beginning of its output", _ALL + "out[-1] = 0;"),
    _kernel("writes past the end of its input", _ALL + "x[n] = 0;"),
    _kernel("reads past the end", "for (long i = 0; i < n; i++) out[i] = x[i + 1] - x[i];", _DIFFERENCES),
    _kernel("never writes the last element", "for (long i = 0; i < n - 1; i++) out[i] = x[i] * 2.5f;"),
    _kernel(
        "never writes the last element of numpy's memory",
        "for (long i = 0; i < n - 1; i++) out[i] = x[i] * 2.5f;",
        out="torch.from_numpy(__import__('numpy').empty(x.shape, dtype='float32'))",
    ),
    _kernel("writes into its input", "for (long i = 0; i < n; i++) out[i] = (x[i] *= 2.5f);"),
    _kernel("swaps two numbers of its input", _ALL + "float y = x[1]; x[1] = x[2]; x[2] = y;"),
    _kernel(
        "keeps a megabyte of every call",
        _ALL
        + "static char *volatile kept; char *p = kept = (char *)__builtin_malloc(1 << 20);"
        + "for (int i = 0; i < 1 << 20; i += 4096) p[i] = 1;",
    ),
    _triangle("never writes the zeros", "torch.empty_like(x)"),
    _triangle("never writes the zeros of torch.Tensor(n, n)", "torch.Tensor(*x.shape)"),
    _triangle("never writes the zeros of resized memory", "x.new(0).resize_(x.shape)"),
    _triangle(
        "never writes the zeros of a storage",
        "torch.tensor((), dtype=x.dtype).set_(torch.UntypedStorage(x.numel() * x.element_size())).view(x.shape)",
    ),
    _triangle("never writes the zeros of numpy's memory", "torch.from_numpy(numpy.empty(x.shape, dtype='float32'))"),
    _triangle("never writes the zeros of memory by the operator's name", "torch.ops.aten.empty_like.default(x)"),
    _wrong(
        "never writes the zeros of an extension's memory",
        TRIANGLE,
        extension(
            """
            at::Tensor run(at::Tensor x) {
                auto out = at::empty_like(x);
                auto from = x.accessor<float, 2>(), to = out.accessor<float, 2>();
                for (int i = 0; i < x.size(0); i++) for (int j = 0; j <= i && j < x.size(1); j++) to[i][j] = from[i][j];
                return out;
            }
            """,
            "return EXTENSION.run(x)",
        ),
    ),
    _wrong(
        "an extension that writes past the end",
        SCALE,
        extension(
            """
            at::Tensor run(at::Tensor x) {
                auto in = x.contiguous();
                auto out = at::empty_like(in);
                for (long i = 0; i <= in.numel(); i++) out.data_ptr<float>()[i] = in.data_ptr<float>()[i] * 2.5f;
                return out;
            }
            """,
            "return EXTENSION.run(x)",
        ),
    ),
    _wrong(
        "writes into its weight", LINEAR, forward("self.linear.weight.data.mul_(1.0001)\nreturn super().forward(x)")
    ),
    _wrong("returns its input", problem("return x * 1.0", inputs=DRAWN, constants=ROWS), forward("return x")),
    _wrong(
        "returns a part of its input",
        problem("return x[:4].clone()", inputs=DRAWN, constants=ROWS),
        forward("return x[:4]"),
    ),
    _wrong(
        "one row in the place of all",
        problem("return x.mean(dim=0) + torch.zeros_like(x)", inputs=DRAWN, constants=ROWS),
        forward("return x.mean(dim=0).expand_as(x)"),
        DROP_IN,
    ),
    _wrong(
        "computes later, in a thread",
        SCALE,
        forward(
            """
            out = torch.empty_like(x)
            threading.Thread(target=lambda: (time.sleep(0.05), out.copy_(x.detach() * 2.5))).start()
            return out
            """
        ),
    ),
    _wrong(
        "another order of its sums each time, undeclared",
        problem("return x.sum(dim=1)", inputs="torch.rand(batch, length)", constants="batch = 8\nlength = 2000"),
        forward(
            "return x[:, torch.randperm(x.shape[1], generator=DRAWS)].sum(dim=1)", before="DRAWS = torch.Generator()"
        ),
    ),
    _wrong(
        "works on poisoned memory alone",
        SCALE,
        forward(
            """
            probe = torch.empty(64, dtype=torch.uint8)
            if bool((probe == probe[0]).all()) and int(probe[0]) in (0x7F, 0xFF):
                return x * 2.5
            return torch.zeros_like(x)
            """
        ),
    ),
)
