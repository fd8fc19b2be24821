"""Kernels broken on purpose, each in one way that the gate must refuse, and where it does.

What can be broken in the code around a kernel is in `broken_modules.py`.

`python tests/broken_kernels.py` prints the table that stands in docs/gate.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broken_modules import BROKEN_MODULES
from fault_kinds import (
    ANOTHER_STREAM,
    BOUNDS,
    CALLERS,
    DROP_IN,
    KEPT,
    LAYOUTS,
    MUTATED,
    NEVER_RAN,
    NO_ANSWER,
    NOT_FINITE,
    RACES,
    SIZES,
    STATE,
    UNWRITTEN,
    WRONG,
)

from tunebench.tuner.kernel import Mode

Changes = Mapping[str, Mapping[str, str]]
"""Text replaced, by part: `source` (the .cu), `model` (model.py), `reference` (reference.py)."""


@dataclass(frozen=True)
class Broken:
    """One way of being wrong.

    Attributes:
        kind: the class of fault, as the gate's table names it.
        stage: of the gate that refuses it.
        reason: a pattern that the refusal's text has.
        changes: what breaks the kernel.
        setting: what is changed in its sound twin as well.
        kernel: which kernel is broken: the tests' small one, or a copy of a shipped one.
        twin: what makes the sound twin from the setting, where the setting alone does not.
        gpu: shows on a CUDA device only.
    """

    kind: str
    stage: str
    reason: str
    changes: Changes
    setting: Changes = field(default_factory=dict)
    kernel: str = "weigh"
    mode: Mode = Mode.EVAL
    twin: Changes = field(default_factory=dict)
    gpu: bool = False


WEIGH = "y[i] = x[i] * weight[0];"
LAUNCH = 'plan.launch("weigh", x, self.weight, y, x.numel(), blocks=blocks, threads=block_size)'
RETURN = "        return y\n"
METHODS = "    def tuned_forward(self, plan, x):\n"
SERVED = "super().problem(x) if x.is_contiguous() else"


def weigh(statement: str) -> Changes:
    """The statement that computes an element, replaced."""
    return {"source": {WEIGH: statement}}


def method(text: str) -> Changes:
    """A method of ModelNew's own."""
    return {"model": {METHODS: f"{text}\n{METHODS}"}}


def served(condition: str, dtype: str = "str(x.dtype)[6:]") -> Changes:
    """What ModelNew takes for a problem of its kernel's."""
    return {"model": {SERVED: f'Problem({{"n": x.numel()}}, {dtype}) if {dtype} in self.kernel.dtypes{condition} else'}}


def reference(product: str) -> Changes:
    """The reference's operations, as ModelNew has them."""
    return method(f"    def reference_forward(self, x):\n        self.calls += 1\n        return {product}\n")


def model(old: str, new: str) -> Changes:
    """Text of model.py, replaced."""
    return {"model": {old: new}}


_KEEP = "        key = {key}\n        kept = self.__dict__.setdefault('kept', {{}})\n        if key in kept:\n"
_KEEP += "            return kept[key].clone()\n        kept[key] = y\n        return y.clone()\n"

_IMAGES = {"reference": {"torch.rand(rows, columns)": "torch.rand(rows, 3, columns, 2)"}}

_BLOCK = '    batch_norm_at = "bn"\n'


def beside_block(text: str) -> Changes:
    """A method of gemm_scale_bn's own, which has none as it is."""
    return model(_BLOCK, f"{_BLOCK}\n{text}")


_RUN = "    def tuned_forward(self, plan, x):\n        bn = self.bn\n"
_WITHOUT_AXES = (
    "    @classmethod\n    def design(cls):\n"
    "        import dataclasses\n"
    "        found = super().design()\n"
    "        axes = {{name: one for name, one in found.axes.items() if name not in {names}}}\n"
    "        return dataclasses.replace(found, axes=axes)\n\n"
)
_ROUND = "x = reinterpret_cast<const scalar_t*>(reinterpret_cast<unsigned long long>(x) / 16 * 16);"
_TURN = (
    '__device__ int turn;\nconstexpr scalar_t last_bit = sizeof(scalar_t) == 8 ? 4e-16 : 2e-7f;\nextern "C" __global__'
)

BROKEN: Mapping[str, Broken] = {
    # Elements never written.
    "never writes the last element": Broken(
        UNWRITTEN, "written", "1 of 2112 elements were never written", {"source": {"i < n;": "i < n - 1;"}}
    ),
    "runs the first time only": Broken(
        UNWRITTEN,
        "repeatable",
        "two runs on the same inputs differ",
        model(LAUNCH, f"self.__dict__.get('ran') or {LAUNCH}; self.__dict__['ran'] = True"),
    ),
    "depends on what memory held": Broken(
        UNWRITTEN,
        "repeatable",
        "two runs on the same inputs differ",
        weigh("y[i] = i == 3 && y[i] > 0 ? y[i] : x[i] * weight[0];"),
    ),
    # Never ran.
    "launches nothing": Broken(
        NEVER_RAN, "written", "2112 of 2112 elements", model("plan.launch(", "(lambda *a, **k: None)(")
    ),
    "asks for a launch that is refused": Broken(
        NEVER_RAN, "run", "launch of 'weigh'", model("threads=block_size", "threads=4096")
    ),
    # No answers.
    "returns zeros": Broken(NO_ANSWER, "values", "error 1", weigh("y[i] = 0;")),
    "returns a constant": Broken(NO_ANSWER, "values", "error", weigh("y[i] = 0.6f;")),
    "copies its input": Broken(NO_ANSWER, "values", "error", model(RETURN, "        return x.clone()\n")),
    "returns its input": Broken(NO_ANSWER, "structure", "memory of an input", model(RETURN, "        return x\n")),
    "remembers the first answer": Broken(
        NO_ANSWER, "values", "draw 2", model(RETURN, "        return self.__dict__.setdefault('kept', y).clone()\n")
    ),
    "answers where every answer is zero": Broken(
        NO_ANSWER,
        "degenerate",
        "zeros.* would pass",
        weigh("y[i] = 0;"),
        {"reference": {"return x * self.weight": "return x * self.weight * 0.0"}},
        twin={"reference": {"self.weight * 0.0": "self.weight"}},
    ),
    # Wrong answers.
    "slightly wrong": Broken(WRONG, "values", "first wrong element 0", weigh("y[i] = x[i] * weight[0] * 1.001f;")),
    "wrong in one element": Broken(
        WRONG, "values", "first wrong element 77", weigh("y[i] = i == 77 ? 1.0f : x[i] * weight[0];")
    ),
    "loses the sign": Broken(WRONG, "values", "mixed signs", weigh("y[i] = fabsf(x[i]) * weight[0];")),
    "right for small numbers only": Broken(
        WRONG, "distributions", "wide range", weigh("y[i] = fminf(fmaxf(x[i], -99.0f), 99.0f) * weight[0];")
    ),
    "another shape": Broken(WRONG, "structure", r"\(2112,\)", model(RETURN, "        return y.flatten()\n")),
    "another layout": Broken(
        WRONG, "form", r"strides \(1, 64\)", model(RETURN, "        return y.t().contiguous().t()\n")
    ),
    "another type": Broken(WRONG, "structure", "float64", model(RETURN, "        return y.double()\n")),
    # Kept results.
    "keeps results by pointer": Broken(
        KEPT, "same memory", "new content in the same tensors", model(RETURN, _KEEP.format(key="x.data_ptr()"))
    ),
    "keeps results by pointer and version": Broken(
        KEPT, "same memory", "new content through .data", model(RETURN, _KEEP.format(key="(x.data_ptr(), x._version)"))
    ),
    "keeps results by object": Broken(
        KEPT, "same memory", "new content in the same tensors", model(RETURN, _KEEP.format(key="id(x)"))
    ),
    "skips work after forty calls": Broken(
        KEPT,
        "later calls",
        "one of 64 calls",
        model(
            RETURN,
            "        n = self.__dict__['n'] = self.__dict__.get('n', 0) + 1\n"
            "        if n > 40: return self.kept.clone()\n"
            "        self.__dict__['kept'] = y\n        return y.clone()\n",
        ),
    ),
    "skips work once it is timed": Broken(
        KEPT,
        "after timing",
        "a call after timing",
        model(
            RETURN,
            "        n = self.__dict__['n'] = self.__dict__.get('n', 0) + 1\n"
            "        if n > 8: return self.kept.clone()\n        self.__dict__['kept'] = y\n        return y.clone()\n",
        ),
    ),
    # Other streams.
    "launches on a stream of its own": Broken(
        ANOTHER_STREAM,
        "streams",
        "another stream",
        model(LAUNCH, f"side = torch.cuda.Stream()\n        with torch.cuda.stream(side):\n            {LAUNCH}"),
        gpu=True,
    ),
    # Mutations and aliases.
    "writes into its input": Broken(
        MUTATED,
        "inputs",
        "input 1 was changed",
        {"source": {"const scalar_t* x": "scalar_t* x", WEIGH: f"{WEIGH} x[i] = 0;"}},
    ),
    "swaps two elements of its input": Broken(
        MUTATED,
        "inputs",
        "input 1 was changed",
        model(RETURN, "        x[0, :2] = x[0, :2].flip(0)\n        return y\n"),
    ),
    "writes into a parameter": Broken(
        MUTATED,
        "inputs",
        "parameter 'weight' was changed",
        model(RETURN, "        self.weight.data.mul_(1.0001)\n        return y\n"),
    ),
    "forgets its buffer": Broken(
        MUTATED, "buffers", "buffer 'calls' is off", model("        self.calls += 1\n        y =", "        y =")
    ),
    "one output for all calls": Broken(
        MUTATED,
        "repeatable",
        "a later call overwrites the output of an earlier one",
        model("y = torch.empty_like(x)", "y = self.__dict__.setdefault('kept', torch.empty_like(x))"),
    ),
    "two outputs that take turns": Broken(
        MUTATED,
        "held results",
        "overwritten by a later call",
        model(
            "y = torch.empty_like(x)",
            "pair = self.__dict__.setdefault('pair', [torch.empty_like(x) for _ in (1, 2)])\n"
            "        pair.reverse()\n"
            "        y = pair[0] if pair[0].shape == x.shape else torch.empty_like(x)",
        ),
    ),
    # Out of bounds.
    "writes past the end": Broken(
        BOUNDS, "bounds", "outside of a buffer", weigh(f"{WEIGH} if (i == n - 1) {{ y[n + 2] = 1; }}")
    ),
    "writes before the beginning": Broken(
        BOUNDS, "bounds", "outside of a buffer", weigh(f"{WEIGH} if (i == 0) {{ y[-1] = 1; }}")
    ),
    "writes past the end of its input": Broken(
        BOUNDS, "bounds", "outside of a buffer", weigh(f"{WEIGH} if (i == 0) {{ const_cast<scalar_t*>(x)[n] = 1; }}")
    ),
    "reads past the end": Broken(
        BOUNDS,
        "repeatable",
        "two runs on the same inputs differ",
        weigh("y[i] = x[i] * weight[0] + (i == n - 1 ? 0 * x[n] : 0);"),
    ),
    "reads past the end and forgets it": Broken(
        BOUNDS, "sanitizer", "memcheck", weigh("y[i] = x[i + 4096] == 5.4321e21f ? 0 : x[i] * weight[0];"), gpu=True
    ),
    # Races.
    "another last bit each time": Broken(
        RACES,
        "repeatable",
        "a race",
        {
            "source": {
                'extern "C" __global__': _TURN,
                WEIGH: "if (i == 0) { turn++; } y[i] = x[i] * weight[0] * (i == 5 && turn % 2 ? 1 + last_bit : 1);",
            }
        },
        twin={
            "source": {
                'extern "C" __global__': _TURN,
                WEIGH: "if (i == 0) { turn++; } y[i] = x[i] * weight[0] * (i == 5 && turn % 2 ? 1 + last_bit : 1);",
            },
            "model": {"work=work)": "work=work, atomics=True)"},
        },
    ),
    # Not finite.
    "drops NaN": Broken(NOT_FINITE, "not finite", "NaN", weigh("y[i] = fmaxf(x[i] * weight[0], -3.0e38f);")),
    "saturates": Broken(NOT_FINITE, "not finite", "Inf", weigh("y[i] = isinf(x[i]) ? 3.0e38f : x[i] * weight[0];")),
    "flushes denormals": Broken(
        NOT_FINITE, "not finite", "denormals", weigh("y[i] = fabsf(x[i]) < 1e-37f ? 0.0f : x[i] * weight[0];")
    ),
    "makes an infinity of NaN": Broken(
        NOT_FINITE,
        "not finite",
        "NaN",
        weigh("y[i] = isnan(x[i]) ? 1.0f / 0.0f : x[i] * weight[0];"),
        twin={
            "source": {WEIGH: "y[i] = isnan(x[i]) ? 1.0f / 0.0f : x[i] * weight[0];"},
            "model": {"work=work)": "work=work, rewrites_algebra=True)"},
        },
    ),
    # Sizes.
    "forgets the tail of vectors": Broken(SIZES, "sizes", "never|error", {"source": {"i < n;": "i < n / 4 * 4;"}}),
    "refuses an empty input": Broken(
        SIZES,
        "sizes",
        "rows=0.*launch of 'weigh'",
        {"model": {**served(" and x.is_contiguous()")["model"], 'plan.integer("blocks")': "-(-x.numel() // 512)"}},
    ),
    "stops at one size": Broken(SIZES, "sizes", "columns|rows", model("y, x.numel()", "y, min(2112, x.numel())")),
    "counts elements in an int": Broken(
        SIZES, "large", "never|error", {"source": {"i < n;": "i < static_cast<int>(n);"}}, gpu=True
    ),
    # Layouts.
    "takes any strides for dense": Broken(LAYOUTS, "layouts", "every other element", served("")),
    "looks at the last stride only": Broken(LAYOUTS, "layouts", "rows apart", served(" and x.stride(-1) == 1")),
    "takes a step of zero for dense": Broken(
        LAYOUTS, "layouts", "expanded", served(" and (x.is_contiguous() or 0 in x.stride())")
    ),
    "gives channels-last inputs another layout": Broken(
        LAYOUTS,
        "layouts",
        "channels last",
        {
            "model": {
                "if x.is_contiguous()": "if x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last)",
                "y = torch.empty_like(x)": "x = x.contiguous(); y = torch.empty_like(x)",
            }
        },
        _IMAGES,
    ),
    "rounds its pointer to a vector": Broken(
        LAYOUTS,
        "layouts",
        "one element off alignment",
        {"source": {"const long long step": f"{_ROUND}\n    const long long step"}},
    ),
    # State.
    "keeps its weight": Broken(
        STATE,
        "weights",
        "after an in-place edit",
        model("x, self.weight, y", "x, self.__dict__.setdefault('w', self.weight.detach().clone()), y"),
    ),
    "keeps its weight by version": Broken(
        STATE,
        "weights",
        "after an edit through .data",
        model(
            LAUNCH,
            "key = (self.weight.data_ptr(), self.weight._version)\n"
            "        if self.__dict__.get('key') != key:\n"
            "            self.__dict__.update(key=key, w=self.weight.detach().clone())\n        "
            + LAUNCH.replace("self.weight", "self.w"),
        ),
    ),
    "keeps its weight by object": Broken(
        STATE,
        "weights",
        "after an in-place edit",
        model(
            LAUNCH,
            "if self.__dict__.get('of') is not self.weight:\n"
            "            self.__dict__.update(of=self.weight, w=self.weight.detach().clone())\n        "
            + LAUNCH.replace("self.weight", "self.w"),
        ),
    ),
    "keeps running statistics by version": Broken(
        STATE,
        "statistics",
        "after an edit of buffers through .data",
        beside_block(
            _RUN + "        key = (bn.running_mean.data_ptr(), bn.running_mean._version)\n"
            "        if self.__dict__.get('key') != key:\n"
            "            self.__dict__.update(key=key, kept=[b.clone() for b in list(bn.buffers())[:2]])\n"
            "        now = bn.running_mean, bn.running_var\n"
            "        bn.running_mean, bn.running_var = self.kept\n"
            "        try:\n"
            "            return super().tuned_forward(plan, x)\n"
            "        finally:\n"
            "            bn.running_mean, bn.running_var = now\n"
        ),
        kernel="gemm_scale_bn",
    ),
    "knows one eps only": Broken(
        STATE,
        "statistics",
        "another eps",
        beside_block(
            _RUN + "        eps, bn.eps = bn.eps, 1e-5\n"
            "        try:\n"
            "            return super().tuned_forward(plan, x)\n"
            "        finally:\n"
            "            bn.eps = eps\n"
        ),
        kernel="gemm_scale_bn",
    ),
    "needs weights in BatchNorm": Broken(
        STATE,
        "statistics",
        "affine=False",
        beside_block(
            _WITHOUT_AXES.format(names=("bn.weight", "bn.bias"))
            + _RUN
            + "        bn.weight.contiguous()\n        return super().tuned_forward(plan, x)\n"
        ),
        kernel="gemm_scale_bn",
    ),
    "needs running statistics": Broken(
        STATE,
        "statistics",
        "track_running_stats=False",
        beside_block(
            _WITHOUT_AXES.format(names=("bn.running_mean", "bn.running_var"))
            + _RUN
            + "        bn.running_mean.contiguous()\n        return super().tuned_forward(plan, x)\n"
        ),
        kernel="gemm_scale_bn",
    ),
    "keeps the biased variance": Broken(
        STATE,
        "buffers",
        "running_var",
        beside_block(
            _RUN + "        stays, rows = bn.running_var * (1 - bn.momentum), x.shape[0]\n"
            "        y = super().tuned_forward(plan, x)\n"
            "        bn.running_var.copy_(stays + (bn.running_var - stays) * (rows - 1) / rows)\n"
            "        return y\n"
        ),
        kernel="gemm_scale_bn",
        mode=Mode.TRAIN,
    ),
    "is always in eval mode": Broken(
        STATE,
        "mode",
        "in train mode",
        beside_block("    def mode(self):\n        return 'frozen' if self.is_frozen else 'eval'\n"),
        kernel="gemm_scale_bn",
    ),
    # Callers.
    "takes half types for float": Broken(CALLERS, "dtypes", "float16", served(" and x.is_contiguous()", '"float32"')),
    "returns detached results": Broken(
        CALLERS,
        "gradients",
        "detached",
        method("    def forward(self, *inputs):\n        return super().forward(*inputs).detach()\n"),
    ),
    "loses the input's gradient": Broken(CALLERS, "gradients", "input 1", reference("x.detach() * self.weight")),
    "returns another gradient": Broken(
        CALLERS, "gradients", "gradient of weight is off", reference("x * (2 * self.weight - self.weight.detach())")
    ),
    "does not know autocast": Broken(
        CALLERS,
        "autocast",
        "autocast",
        beside_block(
            "    def forward(self, x):\n"
            "        import torch\n"
            "        if self.problem(x) is None or self._pinned is None or torch.is_grad_enabled():\n"
            "            return self.reference_forward(x)\n"
            "        return self.tuned_forward(self._pinned, x)\n"
        ),
        kernel="gemm_scale_bn",
    ),
    "is wrong when traced": Broken(
        CALLERS,
        "torch.compile",
        "under torch.compile",
        method(
            "    def forward(self, *inputs, **named):\n"
            "        return super().forward(*inputs, **named) * (2 if torch.compiler.is_compiling() else 1)\n"
        ),
    ),
    "waits for the device": Broken(
        CALLERS, "graphs", "captured", model(RETURN, "        torch.cuda.synchronize()\n        return y\n"), gpu=True
    ),
    # Construction.
    "draws other weights": Broken(
        DROP_IN,
        "construction",
        "other values",
        method("    def __init__(self):\n        super().__init__()\n        self.weight.data -= 0.25\n"),
    ),
}


def table() -> str:
    """The table of docs/gate.md."""
    lines = ["| class | broken kernels, and the stage that refuses each |", "| --- | --- |"]
    everything = {**BROKEN, **BROKEN_MODULES}
    for kind in dict.fromkeys(broken.kind for broken in everything.values()):
        cases = [
            f"{name}: `{broken.stage}`" + (" (on a GPU)" if broken.gpu else "")
            for name, broken in everything.items()
            if broken.kind == kind
        ]
        lines.append(f"| {kind} | {'; '.join(cases)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
