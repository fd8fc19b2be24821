"""Files that need a GPU: CUDA extensions that torch builds, Triton, streams, graphs and TF32."""

from __future__ import annotations

from tests.gate_files.entry import PROBLEM, GateFile, forward, problem, right, wrong
from tests.gate_files.references import DEEP, DRAWN, ROWS, SCALE

_right, _wrong = right("CUDA"), wrong("CUDA")

_KERNELS = r"""
#include <c10/cuda/CUDAStream.h>
#include <torch/types.h>

__global__ void scale(const float *x, float *y, long first, long last) {
    long i = first + blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < last) y[i] = x[i] * 2.5f;
}

__global__ void scale_all(const float *x, float *y, long n) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    float read = i <= n ? x[i] : 0;
    if (i < n) y[i] = read * 2.5f;
    if (i == n && read == 1.2345678e33f) y[0] = read;
}

__global__ void add_to(const float *x, float *y, long n) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < n) y[i] += x[i] * 2.5f;
}

__global__ void differences(const float *x, float *y, long n) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i + 1] - x[i];
}

__global__ void row_sums(const float *x, float *y, long columns, bool waits, bool late) {
    __shared__ float sums[256];
    float sum = 0;
    for (long c = threadIdx.x; c < columns; c += 256) sum += x[blockIdx.x * columns + c];
    // Without a barrier the first warp reads what the others have not written yet, or, where it is late, has luck.
    if (late == (threadIdx.x < 32)) for (int k = 0; k < 200; k++) __nanosleep(1000);
    sums[threadIdx.x] = sum;
    if (waits) __syncthreads();
    if (threadIdx.x == 0) {
        for (int k = 1; k < 256; k++) sum += ((volatile float *)sums)[k];
        y[blockIdx.x] = sum;
    }
}

__global__ void stay(long seconds) {
    long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - begin < seconds * 1000000000);
}

at::Tensor run(at::Tensor given, std::string how) {
    at::Tensor x = given.contiguous();
    const float *in = x.data_ptr<float>();
    auto stream = c10::cuda::getCurrentCUDAStream();
    long n = x.numel(), blocks = n / 256 + 1;
    if (how.find("sums") != std::string::npos) {
        at::Tensor sums = at::empty({x.size(0)}, x.options());
        if (x.size(0)) {
            bool waits = how == "sums", late = how == "lucky sums";
            row_sums<<<x.size(0), 256, 0, stream>>>(in, sums.data_ptr<float>(), x.size(1), waits, late);
        }
        return sums;
    }
    at::Tensor y = at::empty_like(x);
    float *out = y.data_ptr<float>();
    if (how == "all") scale<<<blocks, 256, 0, stream>>>(in, out, 0, n);
    if (how == "one more") scale<<<blocks, 256, 0, stream>>>(in, out, 0, n + 1);
    if (how == "one before") scale<<<blocks, 256, 0, stream>>>(in, out, -1, n);
    if (how == "all but one") scale<<<blocks, 256, 0, stream>>>(in, out, 0, n - 1);
    if (how == "one more read") scale_all<<<blocks, 256, 0, stream>>>(in, out, n);
    if (how == "add") add_to<<<blocks, 256, 0, stream>>>(in, out, n);
    if (how == "differences") differences<<<blocks, 256, 0, stream>>>(in, out, n);
    if (how == "nowhere") scale<<<1, 1, 0, stream>>>(in, nullptr, 0, 1);
    if (how == "too many threads") scale<<<blocks, 4096, 0, stream>>>(in, out, 0, n);
    if (how == "a minute") stay<<<1, 1, 0, stream>>>(60);
    if (how == "own stream") scale<<<blocks, 256, 0, c10::cuda::getStreamFromPool()>>>(in, out, 0, n);
    if (how == "there and back") {
        auto other = c10::cuda::getStreamFromPool();
        cudaEvent_t before, after;
        cudaEventCreateWithFlags(&before, cudaEventDisableTiming);
        cudaEventCreateWithFlags(&after, cudaEventDisableTiming);
        cudaEventRecord(before, stream);
        cudaStreamWaitEvent(other, before);
        scale<<<blocks, 256, 0, other>>>(in, out, 0, n);
        cudaEventRecord(after, other);
        cudaStreamWaitEvent(stream, after);
        cudaEventDestroy(before);
        cudaEventDestroy(after);
    }
    return y;
}
"""
"""One extension for all files, so that a folder of builds has to build it once (`TORCH_EXTENSIONS_DIR`)."""

_EXTENSION = f"""
from torch.utils.cpp_extension import load_inline

EXTENSION = load_inline(
    "gate_files_on_cuda",
    "at::Tensor run(at::Tensor given, std::string how);",
    {_KERNELS!r},
    functions=["run"],
)
"""

_SUMS = problem("return x.sum(dim=1)", inputs="torch.rand(rows, columns)", constants="rows = 12\ncolumns = 3000")
_DIFFERENCES = problem("return F.pad(x, (0, 1))[1:] - x", inputs="torch.rand(length)", constants="length = 97")
_TWICE = problem("return torch.tanh(x) * 2", inputs=DRAWN, constants=ROWS)


def _runs(how: str, checked: str = "") -> str:
    return forward(f"out = EXTENSION.run(x.detach(), {how!r})\n{checked}\nreturn out", before=_EXTENSION)


_TRITON = """
import triton
import triton.language as tl

@triton.jit
def scale(x, y, n, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    {inside}
    tl.store(y + at, tl.load(x + at, mask=inside) * 2.5, mask=inside)
"""
_LAUNCH = """
x = x.detach().contiguous()
y = torch.empty_like(x)
if x.numel():
    scale[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), block=128)
return y
"""

_GRAPH = """
if tuple(x.shape) not in GRAPHS:
    given, stream = x.detach().clone(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.tanh(given) * 2
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = torch.tanh(given) * 2
    GRAPHS[tuple(x.shape)] = graph, given, made
graph, given, made = GRAPHS[tuple(x.shape)]
given.copy_(x)
graph.replay()
return {}
"""

_SIDE_STREAM = """
with torch.cuda.stream(SIDE):
    return torch.tanh(x) * 2
"""

FILES: tuple[GateFile, ...] = (
    _right("a CUDA extension", SCALE, _runs("all"), PROBLEM),
    _right("a CUDA extension with a barrier", _SUMS, _runs("sums"), PROBLEM),
    _right("a CUDA extension on a stream of its own that waits", SCALE, _runs("there and back"), PROBLEM),
    _right("a Triton kernel", SCALE, forward(_LAUNCH, before=_TRITON.format(inside="inside = at < n")), PROBLEM),
    _right("a CUDA graph of its own", _TWICE, forward(_GRAPH.format("made.clone()"), before="GRAPHS = {}"), PROBLEM),
    _wrong("a CUDA extension that writes past the end", SCALE, _runs("one more")),
    _wrong("a CUDA extension that writes before the beginning", SCALE, _runs("one before")),
    _wrong("a CUDA extension that reads past the end", _DIFFERENCES, _runs("differences")),
    _wrong("a CUDA extension that adds to what nobody wrote", SCALE, _runs("add")),
    _wrong("a CUDA extension that leaves out an element", SCALE, _runs("all but one")),
    _wrong("a CUDA extension without its barrier", _SUMS, _runs("hasty sums")),
    _wrong("a CUDA extension whose race is won", _SUMS, _runs("lucky sums")),
    _wrong("a CUDA extension that reads past the end and forgets it", SCALE, _runs("one more read")),
    _wrong("a CUDA extension that nothing waits for", SCALE, _runs("own stream")),
    _wrong("a CUDA extension that writes at address zero", SCALE, _runs("nowhere")),
    _wrong("a CUDA extension whose launch is refused", SCALE, _runs("too many threads")),
    _wrong("a CUDA extension that takes a minute", SCALE, _runs("a minute", "torch.cuda.synchronize()")),
    _wrong(
        "a Triton kernel without its mask", SCALE, forward(_LAUNCH, before=_TRITON.format(inside="inside = at >= 0"))
    ),
    _wrong("a CUDA graph whose output it returns", _TWICE, forward(_GRAPH.format("made"), before="GRAPHS = {}")),
    _wrong(
        "work on a stream that nobody waits for", _TWICE, forward(_SIDE_STREAM, before="SIDE = torch.cuda.Stream()")
    ),
    _wrong(
        "a product in TF32, which is off afterwards",
        DEEP,
        forward(
            """
            torch.backends.cuda.matmul.allow_tf32 = True
            try:
                return super().forward(x)
            finally:
                torch.backends.cuda.matmul.allow_tf32 = False
            """
        ),
    ),
)

_SOUND_ON_CUDA = ("gives images in channels last another layout",)
"""torch's own group norm forgets the layout there."""

HANGS = ("a CUDA extension that takes a minute",)


def runs_on_cuda(file: GateFile) -> bool:
    """Whether a file that was written for the CPU can be asked on a GPU: not one whose code is for the CPU, or whose
    fault is none there."""
    on_cpu = any(word in file.text for word in ("CDLL", "load_inline", "set_flush_denormal", "_set_mkldnn"))
    return not on_cpu and file.name not in _SOUND_ON_CUDA
