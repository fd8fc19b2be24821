"""Draws models of random operations from a seed, and compares what their loop nests compute with the reference."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import Any

import torch
from programs import Case, program_of
from torch import nn
from torch.nn import functional

from tunebench.studies.writing.loops.lower import UnloweredError
from tunebench.studies.writing.loops.program import Program
from tunebench.tuner.gate.faults import ReferenceRefusal
from tunebench.tuner.gate.judge import judge_structure, judge_values
from tunebench.tuner.gate.model import Model
from tunebench.tuner.gate.oracle import ask
from tunebench.tuner.gate.stage_log import StageRefused
from tunebench.tuner.gate.values import Values

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_SIZES = {0: 1, 1: 3, 2: 3, 3: 3, 5: 3, 7: 3, 8: 3, 16: 3, 33: 3}
"""Sizes of the inputs, and how often each is drawn."""
_MOST = 4096
"""Upper limit of the elements of a value: a CPU stands for a GPU here."""
_LEAST_STEPS, _MOST_STEPS = 3, 12
_TRIES = 40

# Names in braces are drawn: {f} a value of a floating type, {i} an integer, {b} a truth value, {x} any; {d} a dimension
# of the first of them, {dims} some, {keep} whether they are kept; {s} a number, {n} a count, {p} a positive one, {t} a
# type; {w}, {c}, {m}, {e} what the model holds: a value for each last place, for each channel, a matrix, a table.
_OPERATIONS: Mapping[str, tuple[int, str]] = {
    "elements": (
        4,
        """
        torch.relu({f})
        torch.tanh({f})
        torch.sigmoid({f})
        functional.gelu({f})
        functional.silu({f})
        functional.softplus({f})
        functional.elu({f})
        functional.leaky_relu({f}, {s})
        functional.hardtanh({f}, -0.5, {p})
        functional.mish({f})
        torch.exp(-{f}.abs())
        torch.exp({f})
        torch.expm1({f})
        torch.log({f})
        torch.log1p({f}.abs())
        torch.sqrt({f}.abs())
        torch.rsqrt({f}.abs() + 1)
        torch.sin({f})
        torch.cos({f})
        torch.atan({f})
        torch.erf({f})
        {x}.abs()
        -{f}
        {x}.square()
        torch.reciprocal({f})
        torch.floor({f})
        torch.ceil({f})
        torch.trunc({f})
        torch.round({f})
        torch.frac({f})
        torch.sign({x})
        {x}.clamp(-{p}, {p})
        {f}.clamp(min={s})
        {f} ** {n}
        {f} * {s}
        {x} + {s}
        {s} - {x}
        {f} / {p}
        {p} / ({f}.abs() + 1)
        {i} * {n} - {n}
        {i} // {p}
        {i} % {p}
        ~{i}
        {i} << {n}
        {i} >> {n}
        ~{b}
        torch.nan_to_num({f})
        torch.ones_like({x}) * {f}
        """,
    ),
    "pairs": (
        4,
        """
        {f} + {f}
        {f} - {f}
        {f} * {f}
        {f} / ({f}.abs() + 1)
        {f} / {f}
        {x} + {x}
        {x} * {x}
        torch.maximum({x}, {x})
        torch.minimum({x}, {x})
        torch.atan2({f}, {f})
        torch.hypot({f}, {f})
        torch.fmod({f}, {f}.abs() + 1)
        torch.remainder({f}, {f}.abs() + 1)
        torch.copysign({f}, {f})
        torch.pow({f}.abs() + 1, {f}.clamp(-3, 3))
        torch.addcmul({f}, {f}, {f}, value={s})
        torch.lerp({f}, {f}, 0.25)
        torch.floor_divide({f}, {f}.abs() + 1)
        {i} + {i}
        {i} * {i}
        {i} // ({i}.abs() + 1)
        {i} % ({i}.abs() + 1)
        {i} & {i}
        {i} | {i}
        {i} ^ {i}
        {b} & {b}
        {b} | {b}
        {b} ^ {b}
        functional.mse_loss({f}, {f})
        functional.l1_loss({f}, {f}, reduction="none")
        functional.smooth_l1_loss({f}, {f})
        """,
    ),
    "choices": (
        2,
        """
        {x} < {x}
        {f} >= {f}
        {x} == {x}
        {x} != {s}
        {f} > {s}
        torch.isnan({f})
        torch.isinf({f})
        torch.isfinite({f})
        torch.signbit({f})
        torch.logical_not({x})
        torch.logical_and({x}, {x})
        torch.logical_xor({x}, {x})
        torch.where({b}, {x}, {x})
        torch.where({b}, {f}, {s})
        torch.where({f} > {s}, {f}, {f})
        {f}.masked_fill({b}, {s})
        {i}.masked_fill({b}, {n})
        torch.heaviside({f}, {f})
        torch.threshold({f}, {s}, {s})
        """,
    ),
    "types": (
        1,
        """
        {f}.nan_to_num(0, 9, -9).clamp(-99, 99).to(torch.int64)
        {f}.nan_to_num(0, 9, -9).clamp(-99, 99).to(torch.int32)
        {x}.to(torch.bool)
        {i}.to({t})
        {b}.to({t})
        {b}.to(torch.int64)
        {i}.to(torch.int32)
        {i}.to(torch.int64)
        {i}.to(torch.int8)
        {i}.to(torch.uint8)
        {x}.to({t})
        {f}.float()
        {x}.double()
        """,
    ),
    "reductions": (
        4,
        """
        {x}.sum({dims}, keepdim={keep})
        {x}.sum()
        {f}.mean({dims}, keepdim={keep})
        {f}.mean()
        {x}.amax({dims}, keepdim={keep})
        {x}.amin({dims}, keepdim={keep})
        {x}.max({d}, keepdim={keep}).values
        {x}.min({d}).indices
        {x}.max()
        {x}.prod({d}, keepdim={keep})
        {f}.var({dims}, keepdim={keep})
        {f}.var({dims}, correction=0, keepdim={keep})
        {f}.std({dims}, keepdim={keep})
        {f}.softmax({d})
        {f}.log_softmax({d})
        functional.softmin({f}, {d})
        torch.logsumexp({f}, {dims}, keepdim={keep})
        {x}.argmax({d}, keepdim={keep})
        {x}.argmin({d}, keepdim={keep})
        {x}.argmax()
        {f}.cumsum({d})
        {i}.cumsum({d})
        {b}.cumsum({d})
        {f}.cumprod({d})
        {x}.any({d}, keepdim={keep})
        {x}.all({d}, keepdim={keep})
        {x}.any()
        {f}.norm(dim={dims}, keepdim={keep})
        {f}.norm(1, dim={d}, keepdim={keep})
        torch.linalg.vector_norm({f}, 3, dim={dims})
        torch.linalg.vector_norm({f}, float("inf"), dim={dims}, keepdim={keep})
        functional.normalize({f}, dim={d})
        functional.cosine_similarity({f}, {f}, dim={d})
        torch.count_nonzero({x}, {d})
        {f} - {f}.mean({d}, keepdim=True)
        {f} / ({f}.abs().amax({d}, keepdim=True) + 1)
        """,
    ),
    "views": (
        4,
        """
        {x}.transpose({d}, {d})
        {x}.permute({order})
        {x}.reshape(-1)
        {x}.reshape({x0}.shape[0], -1)
        {x}.flatten({d}, {d})
        {x}.flatten(1)
        {x}.unsqueeze({d})
        {x}.squeeze({d})
        {x}.squeeze()
        {x}.expand({p}, *{x0}.shape)
        {x}.expand_as({x})
        {x}.unflatten({d}, (-1, {p}))
        {x}[..., {n}:]
        {x}[..., ::{p}]
        {x}[:, {n}:-1]
        {x}[..., None, :]
        {x}.select({d}, {n})
        {x}.select({d}, -1)
        {x}.flip({dims})
        {x}.roll({s_int}, {d})
        {x}.narrow({d}, {n}, {p})
        {x}.diagonal(0, {d}, {d})
        {x}.movedim({d}, {d})
        {x}.repeat_interleave({p}, {d})
        {x}.repeat({p}, *[1] * {x0}.dim())
        {x}.chunk(2, {d})[-1]
        {x}.contiguous()
        torch.tril({x}, {n})
        torch.triu({x}, -{n})
        {x}.unfold({d}, {p}, {p})
        torch.rot90({x})
        """,
    ),
    "joins": (
        3,
        """
        torch.cat([{x}, {x}], {d})
        torch.cat([{f}, {f0}, {f0} * 2], {d})
        torch.stack([{x}, {x}], {d})
        torch.stack([{f}, {f0}.abs()], {d})
        functional.pad({x}, ({n}, {n}))
        functional.pad({f}, ({n}, {p}), value={s})
        functional.pad({f}, ({n}, {n}, {n}, {p}))
        functional.pad({f}, ({n}, {p}), mode="replicate")
        functional.pad({f}, ({n}, {n}, {n}, {p}), mode="reflect")
        functional.pad({f}, ({n}, {n}, {n}, {p}), mode="circular")
        {x}.gather({d}, {i} % {x0}.shape[{d0}])
        {x}.index_select({d}, {i}.flatten() % {x0}.shape[{d0}])
        {x}[{i} % {x0}.shape[0]]
        {x}[:, {i} % {x0}.shape[1]]
        {x}.take_along_dim({i} % {x0}.shape[{d}], {d0})
        functional.embedding({i} % 5, {e})
        functional.one_hot({i} % 5, 5)
        functional.one_hot({i} % 5, 5) * {f}
        torch.arange({x}.shape[-1]) + {x0}
        torch.cat([{f}, {f0}.flip({d})], {d0})
        torch.where(torch.arange({f}.shape[-1]) > {n}, {f0}, {s})
        """,
    ),
    "windows": (
        3,
        """
        functional.max_pool1d({f}, {p}, {p}, padding={n} % 2)
        functional.max_pool2d({f}, {p}, {p})
        functional.max_pool2d({f}, 3, {p}, padding=1)
        functional.max_pool2d({f}, 2, 2, ceil_mode=True)
        functional.max_pool2d({f}, 2, 1, dilation=2)
        functional.avg_pool1d({f}, {p}, {p})
        functional.avg_pool2d({f}, {p}, {p})
        functional.avg_pool2d({f}, 3, {p}, padding=1)
        functional.avg_pool2d({f}, 3, 2, padding=1, count_include_pad=False)
        functional.avg_pool2d({f}, 2, 2, ceil_mode=True)
        functional.avg_pool3d({f}, 2, {p})
        functional.adaptive_avg_pool1d({f}, {p})
        functional.adaptive_avg_pool2d({f}, {p})
        functional.adaptive_avg_pool2d({f}, ({p}, 5))
        functional.adaptive_max_pool1d({f}, {p})
        functional.adaptive_max_pool2d({f}, {p})
        functional.lp_pool1d({f}, 2, {p})
        functional.interpolate({f}, scale_factor={p}, mode="nearest")
        functional.interpolate({f}, scale_factor=2, mode="bilinear")
        functional.interpolate({f}, size=5, mode="linear", align_corners=True)
        functional.unfold({f}, 2)
        functional.unfold({f}, 3, padding=1, stride={p})
        functional.pixel_shuffle({f}, 2)
        functional.pixel_unshuffle({f}, 2)
        functional.channel_shuffle({f}, 2)
        """,
    ),
    "norms": (
        2,
        """
        functional.layer_norm({f}, {f0}.shape[-1:])
        functional.layer_norm({f}, {f0}.shape[-1:], {w}, {w})
        functional.layer_norm({f}, {f0}.shape[1:])
        functional.rms_norm({f}, {f0}.shape[-1:])
        functional.rms_norm({f}, {f0}.shape[-1:], {w})
        functional.group_norm({f}, {p})
        functional.group_norm({f}, 1, {c}, {c})
        functional.instance_norm({f})
        functional.batch_norm({f}, {c}, {c})
        functional.batch_norm({f}, {c}, {c}, {c}, {c})
        functional.local_response_norm({f}, {p})
        {f} * {w} + {w}
        functional.prelu({f}, {c})
        functional.glu({f}, {d})
        """,
    ),
    "products": (
        1,
        """
        {f} @ {m}
        {f} @ {f}
        {f} @ {f0}.mT
        functional.linear({f}, {m}.mT, torch.ones({p}))
        torch.bmm({f}, {f0}.mT)
        """,
    ),
}


@dataclass(frozen=True, eq=False)
class Graph:
    """A model of random operations.

    Attributes:
        dtype: of most of its tensors.
        code: of its `forward`.
        held: its parameters, by name.
    """

    seed: int
    dtype: torch.dtype
    code: str
    held: Mapping[str, torch.Tensor]
    inputs: Mapping[str, torch.Tensor]

    @property
    def name(self) -> str:
        """The name of its entry points."""
        return f"g{self.seed}"

    @property
    def case(self) -> Case:
        """It with its inputs."""
        return Case(self.model(), self.inputs)

    def model(self) -> nn.Module:
        """Return it as a module."""
        context: dict[str, Any] = {"torch": torch, "functional": functional}
        exec(self.code, context)
        model: nn.Module = type("Drawn", (nn.Module,), {"forward": context["forward"]})()
        for name, tensor in self.held.items():
            setattr(model, name, nn.Parameter(tensor, requires_grad=False))
        return model.eval()


@dataclass
class _Drawing:
    """A model while it is drawn.

    Attributes:
        values: by name, of inputs and of steps.
        steps: the texts of the steps, by the names of their results.
        used: names that a step reads.
    """

    seed: int
    random: random.Random
    dtype: torch.dtype
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    held: dict[str, torch.Tensor] = field(default_factory=dict)
    steps: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def floats(self, *shape: int) -> torch.Tensor:
        """Draw numbers of the main type: in steps of a half now and then, so that some are equal."""
        values = torch.randn(shape, dtype=torch.float64)
        return (torch.round(values * 2) / 2 if self.random.random() < 0.25 else values).to(self.dtype)

    def begin(self) -> None:
        """Draw the inputs: one of a shape, others that broadcast with it."""
        while True:
            many = self.random.choice((1, 2, 2, 3, 3, 4, 4))
            sides = self.random.choices(list(_SIZES), list(_SIZES.values()), k=many)
            if torch.Size(sides).numel() <= _MOST // 2:
                break
        kinds = ["f"] + [one for one, share in (("f", 0.6), ("f", 0.2), ("i", 0.4), ("b", 0.3)) if self.chance(share)]
        for at, kind in enumerate(kinds):
            shape = [1 if at and self.chance(0.3) else one for one in sides]
            shape = shape[self.random.randrange(len(shape)) :] if at and self.chance(0.3) else shape
            if kind == "f":
                value = self.floats(*shape)
            elif kind == "i":
                value = torch.randint(-3, 9, shape, dtype=self.random.choice((torch.int64, torch.int64, torch.int32)))
            else:
                value = torch.rand(shape) > 0.5
            self.values[f"x{self.seed}_{at}"] = value

    def chance(self, share: float) -> bool:
        """Draw whether something is so."""
        return self.random.random() < share

    def picked(self, letter: str) -> str | None:
        """Draw a value of a kind, rather the last one or one that nothing has used."""
        names = [name for name, value in self.values.items() if _KINDS[letter](value)]
        last = list(self.values)[-1]
        weights = [1 + 4 * (name not in self.used) + 12 * (name == last) for name in names]
        return self.random.choices(names, weights)[0] if names else None

    def filled(self, template: str) -> str | None:
        """Draw the names of a template; None where there is no such value."""
        given: dict[str, str] = {}
        first: torch.Tensor | None = None
        parts = []
        for text, name, _, _ in Formatter().parse(template):
            parts.append(text)
            if name is None:
                continue
            if name.endswith("0"):
                found: str | None = given[name[0]]
            elif name in _KINDS:
                found = self.picked(name)
                if found is not None and first is None:
                    first = self.values[found]
            else:
                found = self.choice(name, first if first is not None else torch.ones(()))
            if found is None:
                return None
            given.setdefault(name, found)
            parts.append(found)
        return "".join(parts)

    def choice(self, name: str, first: torch.Tensor) -> str | None:
        """Draw what a template says of its first value."""
        draw, dims = self.random, list(range(first.dim()))
        if name in _NUMBERS:
            return str(draw.choice(_NUMBERS[name]))
        if name == "t":
            return str(draw.choice((torch.float32, *DTYPES) if self.chance(0.2) else (self.dtype,)))
        if not dims:
            return "0" if name == "d" else None
        if name == "d":
            return str(draw.choice(dims) - (len(dims) if self.chance(0.3) else 0))
        if name in ("dims", "order"):
            found = draw.sample(dims, len(dims) if name == "order" else draw.randint(1, len(dims)))
            return str(tuple(found))
        last, channels = first.shape[-1], first.shape[min(1, len(dims) - 1)]
        shapes = {"w": (last,), "c": (channels,), "m": (last, 4), "e": (5, 3)}
        held = f"h{len(self.held)}"
        self.held[held] = self.floats(*shapes[name]).abs() + 0.5
        return f"self.{held}"

    def step(self) -> None:
        """Draw an operation that runs on what is there."""
        groups = list(_OPERATIONS.values())
        while True:
            (_, lines) = self.random.choices(groups, [weight for weight, _ in groups])[0]
            template = self.random.choice(lines.strip().splitlines()).strip()
            for _ in range(_TRIES):
                text = self.filled(template)
                if text is None:
                    break
                value = self.evaluated(text)
                if value is not None and value.numel() <= _MOST:
                    name = f"v{len(self.steps)}"
                    self.steps[name], self.values[name] = text, value
                    self.used |= set(_names_in(text))
                    return

    def needed(self) -> set[str]:
        """Return the names that the last step's value is made of."""
        found = {list(self.steps)[-1]}
        for name, text in reversed(self.steps.items()):
            found |= set(_names_in(text)) if name in found else set()
        return found

    def evaluated(self, text: str) -> torch.Tensor | None:
        """Return what torch makes of a step; None where it refuses."""
        model = type("Held", (), self.held)
        context = {"torch": torch, "functional": functional, "self": model, **self.values}
        try:
            value = eval(text, context)
        except Exception:  # noqa: BLE001 - whatever torch raises
            return None
        return value if isinstance(value, torch.Tensor) else None


_KINDS: Mapping[str, Callable[[torch.Tensor], bool]] = {
    "x": lambda _: True,
    "f": lambda value: value.is_floating_point(),
    "i": lambda value: not value.is_floating_point() and value.dtype is not torch.bool,
    "b": lambda value: value.dtype is torch.bool,
}
_NUMBERS: Mapping[str, tuple[float, ...]] = {
    "s": (-2, -1, -0.5, 0, 0.25, 1, 2.5),
    "s_int": (-2, -1, 1, 3),
    "n": (0, 1, 1, 2, 3),
    "p": (1, 2, 2, 3),
    "keep": (True, False),
}


def _names_in(text: str) -> list[str]:
    return re.findall(r"\b(?:v\d+|h\d+|x\d+_\d+)\b", text)


def graph_of(seed: int) -> Graph:
    """Draw a model; the same of the same seed."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    while True:
        drawing = _Drawing(seed, draw, draw.choice(DTYPES))
        drawing.begin()
        wanted, needed = draw.randint(_LEAST_STEPS, _MOST_STEPS), set[str]()
        while len(needed & drawing.steps.keys()) < wanted and len(drawing.steps) < 2 * _MOST_STEPS:
            drawing.step()
            needed = drawing.needed()
        inputs = {name: value for name, value in drawing.values.items() if name in needed and name[0] == "x"}
        steps = {name: text for name, text in drawing.steps.items() if name in needed}
        has_main = any(one.dtype is drawing.dtype for one in inputs.values())
        if has_main and len(steps) in range(_LEAST_STEPS, _MOST_STEPS + 1):
            break
    lines = [f"    {name} = {text}" for name, text in steps.items()]
    code = "\n".join([f"def forward(self, {', '.join(inputs)}):", *lines, f"    return {list(steps)[-1]}", ""])
    held = {name: value for name, value in drawing.held.items() if name in needed}
    return Graph(seed, drawing.dtype, code, held, inputs)


def written(graph: Graph) -> Program | str:
    """Return a model's program, or why there is none; whatever else is raised is a fault."""
    try:
        return program_of(graph.case, graph.name)
    except UnloweredError as error:
        return str(error)


def difference(graph: Graph, inputs: Mapping[str, torch.Tensor], found: torch.Tensor) -> str:
    """Return how a result is further from the reference in float64 than the gate lets it be; empty where it is not."""
    try:
        asked = ask(Model(graph.model()), graph.name, tuple(inputs.values()), everywhere=True)
    except ReferenceRefusal as refusal:
        return str(refusal)
    output = Values.of(found)
    try:
        judge_values(asked, judge_structure(asked, output))
    except StageRefused as refusal:
        return str(refusal)
    return ""


_OTHER_SIZES = {2: 3, 3: 5, 5: 2, 7: 4, 8: 6, 16: 9, 33: 40}


def others_that_serve(graph: Graph, program: Program) -> dict[str, torch.Tensor] | None:
    """Return inputs of other sizes that a model's program is for; None where it is not."""
    torch.manual_seed(graph.seed + 1)
    inputs: dict[str, torch.Tensor] = {}
    for name, value in graph.inputs.items():
        shape = [_OTHER_SIZES.get(one, one) for one in value.shape]
        if value.is_floating_point():
            inputs[name] = torch.randn(shape, dtype=torch.float64).to(value.dtype)
        else:
            inputs[name] = torch.randint(0 if value.dtype is torch.bool else -3, 2, shape).to(value.dtype)
    if all(one.shape == graph.inputs[name].shape for name, one in inputs.items()):
        return None
    context = {size: inputs[argument].shape[at] for size, (argument, at) in program.sizes.items()}
    if not all(eval(one, {"torch": torch, **inputs, **context}) for one in program.conditions):
        return None
    try:
        graph.model()(*inputs.values())
    except Exception:  # noqa: BLE001 - whatever torch raises at these sizes
        return None
    return inputs
