"""A linear layer, and what stands behind it in the product's own epilogue or in one pass over it.

    class ModelNew(blocks.Linear, Model):
        layer = "gemm"
        function = "value + scaling_factor * sigmoid(value)"
        scalars = {"scaling_factor": "scaling_factor"}

    layer           the path of an nn.Linear, or a product with a parameter: "x @ weight.T", "x @ weight"; or of two
                    arguments of forward, each as it is or transposed: "a @ b", "a.T @ b"
    other_layers    of the same input, with as many features, by the names of their values: {"up": "up_proj"}; paths of
                    an nn.Linear each, or, where `layer` is a product with a parameter, of parameters that lie as its
    triangle        what is kept of the product, "upper" or "lower", as torch.triu and torch.tril have it; or all
    function        of one `value` of the product, the bias added
    batch_norm_at   the path of a BatchNorm1d behind the function, in eval and in train mode
    group_norm_at   the path of a GroupNorm behind the function
    reductions      of the function's values in each row, as in `Rows`: {"top": blocks.Max("value")}
    over_rows       a form of the field in their place: softmax, log_softmax, logsumexp, sum, mean or max
    finish          behind these, a function of one `value`, or of a row where it names none
    keepdim         of an output with one value for each row: whether its shape is (rows, 1)

The functions may read `per_feature` and `per_row` tensors, tensors with an element for each of the output's (arguments
of `forward`), tensors of one element (`per_tensor`) and `scalars`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar

import torch

from tunebench.kernels.blocks.block import Block, Design, Kind, Operand, axes_of, fast_math_line, fast_math_tunables
from tunebench.kernels.blocks.device_function import has_fast_tanh, is_off_near_zero, used_names
from tunebench.kernels.blocks.linear_batch_norm import Norm, batch_norm_space, normalised
from tunebench.kernels.blocks.linear_inputs import Stacks, require_fitting, stacks_of, work_of_inputs
from tunebench.kernels.blocks.linear_pass import (
    LinearCall,
    Tuned,
    columns_space,
    elements_space,
    own_output,
    pass_over,
)
from tunebench.kernels.blocks.linear_rows import FORMS, RowForm, RowsBehind, form_of, group_norm_operands, left_alone
from tunebench.kernels.blocks.linear_source import LinearSource
from tunebench.kernels.blocks.linear_training import TrainedLayer, TrainedPlans, trained_plans
from tunebench.kernels.blocks.reductions import Reduction
from tunebench.kernels.blocks.rows import checked_reductions, launch_rows
from tunebench.kernels.runtime.axes import UnservedError
from tunebench.kernels.runtime.derived import KeeperOf
from tunebench.kernels.runtime.gradients import replica
from tunebench.kernels.runtime.ordinary import held
from tunebench.kernels.runtime.tuned_module import own_tensors
from tunebench.kernels.shared import half_product, products, rounded_product, split_product
from tunebench.kernels.shared.products import has_passes, library_product
from tunebench.kernels.shared.split_product import InColumns, RowExponents
from tunebench.tuner.build import Argument
from tunebench.tuner.configuration import Value
from tunebench.tuner.kernel import Mode, Plan
from tunebench.tuner.problem import OUTPUT, Axes, Problem, Work
from tunebench.tuner.space import Constraint, SearchSpace, Tunable

_LAYER = re.compile(r"(?P<input>\w+?)(?P<turned>\.m?T)? @ (?P<weight>[\w.]+?)(?P<transposed>\.m?T)?")
_AXES_OF_KIND: dict[Kind, str | tuple[str, ...]] = {
    Kind.PER_FEATURE: "out_features",
    Kind.PER_ROW: "rows",
    Kind.PER_TENSOR: "ones",
    Kind.ELEMENT: ("rows", "out_features"),
}
_AXES_OF_INPUTS: dict[Kind, str | tuple[str, ...]] = {
    **_AXES_OF_KIND,
    Kind.PER_ROW: "all_rows",
    Kind.ELEMENT: "outputs",
}
_VECTORS = ("weight", "bias", "running_mean", "running_var")
"""The names of a BatchNorm1d's vectors."""
_ROUNDING = ("fast_math", "fast_tanh", "normalisation")
"""The tunables behind a product that decide how exact an answer is."""
_SUM_STAGES_OF_SHORT_ROWS = 8
"""An upper triangle's last rows keep few elements, so that an element's error counts 64 times beside its row's RMS at
4096 columns. Of positive sums 32 stages leave 3.5e-4 on an H200, where the gate allows 1.5e-4; 8 leave 8e-5 in an
emulation of tensor cores."""


class Linear(Block):
    """A model that is a linear layer and functions behind it: see the module's own text.

    Frozen, what is made of parameters and running statistics alone is kept between calls: the parts of the weight, the
    weight that normalises, folded vectors (see `freeze` for how a change is noticed, and its cost). Not frozen, nothing
    that a result depends on is kept. The fused product keeps a guess at the magnitude of the weight's rows, frozen or
    not, which it verifies whenever it reads the weight (see `RowExponents`): a change is noticed in the call that meets
    it, however it was made, also through `.data`. The verification costs no time beside the product.
    """

    layer: ClassVar[str] = ""
    triangle: ClassVar[str] = ""
    function: ClassVar[str] = "value"
    batch_norm_at: ClassVar[str] = ""
    group_norm_at: ClassVar[str] = ""
    reductions: ClassVar[Mapping[str, Reduction]] = {}
    over_rows: ClassVar[str] = ""
    finish: ClassVar[str] = "value"
    keepdim: ClassVar[bool] = False

    kinds_of_operands = (Kind.SCALAR, Kind.PER_FEATURE, Kind.PER_ROW, Kind.PER_TENSOR, Kind.LAYER)

    input_at: ClassVar[int]
    """The place of the layer's input among the arguments of forward."""
    layer_path: ClassVar[str]
    """The path of an nn.Linear; empty where the layer is a product with a parameter."""
    weight_path: ClassVar[str]
    is_transposed: ClassVar[bool]
    """Whether the weight is (in_features, out_features)."""
    other_at: ClassVar[int] = -1
    """The place of a second input that stands for the weight; -1 where there is none."""
    in_columns: ClassVar[tuple[bool, bool]] = (False, False)
    """Which of two inputs are transposed: (in_features, rows), and (in_features, out_features)."""
    is_either_way: ClassVar[bool] = False
    """Whether a product of two inputs may be made as the transposed one is."""
    others_at: ClassVar[tuple[int, ...]] = ()
    """The places of the values of other layers."""
    joins: ClassVar[bool] = False
    """Whether the product's own epilogue or pass reads them."""
    by_columns: ClassVar[bool]
    """Whether what becomes of a value depends on its column or its row."""
    constants_at: ClassVar[tuple[int, ...]]
    """The places of the values that an affine function in front of a normalisation has for each feature."""
    linear_at: ClassVar[tuple[int, ...]]
    """The places of the values for the product's own epilogue or pass; the others are for the rows' launch."""
    reduces_rows: ClassVar[bool]
    is_of_any_shape: ClassVar[bool] = False
    """Whether the layer's input may have more than two dimensions."""
    is_plain: ClassVar[bool]
    """Whether nothing becomes of the product's values."""
    is_of_rows: ClassVar[bool]
    """Whether the output has one value for each row."""
    row_tensors: ClassVar[int] = 1
    row_reductions: ClassVar[int] = 0
    row_stages: ClassVar[tuple[int, int]] = (0, 0)
    """The number of passes of a row's reductions: plainly, and with a maximum and a sum in one."""
    has_online: ClassVar[bool] = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._exponents = RowExponents()
        self._other_exponents = [RowExponents() for _ in self.others_at]

    @classmethod
    def design(cls) -> Design:
        """Design the products of the layer, with the functions behind them."""
        if cls.triangle not in ("", "upper", "lower") or (cls.triangle and cls.batch_norm_at):
            raise cls.wrong("triangle", 'give "upper" or "lower", and no BatchNorm behind it')
        cls._read_layer()
        form = cls._form()
        texts = {"function": cls.text("function"), "finish": cls.text("finish")}
        texts |= {f"reductions[{name!r}]": one.text for name, one in cls.reductions.items()}
        named = ("features", *form.reductions) if cls.reduces_rows else ()
        cls.used = cls.operands(texts, known=("value", *named))
        if cls.group_norm_at:
            cls.used = (*cls.used, *group_norm_operands(cls.group_norm_at))
        cls.others_at = tuple(at for at, one in enumerate(cls.used) if one.kind is Kind.LAYER)
        cls.joins = bool(cls.others_at) and not cls.reduces_rows
        if cls.others_at and (cls.other_at >= 0 or cls.triangle or cls.batch_norm_at):
            raise cls.wrong("other_layers", "give none beside two inputs, a triangle or a BatchNorm")
        of_matrices = cls.other_at >= 0 or cls.reduces_rows or cls.triangle or cls.batch_norm_at
        cls.is_of_any_shape = not of_matrices and all(one.kind is not Kind.PER_ROW for one in cls.used)
        cls.is_plain = cls.function == cls.finish == "value"
        fast_math, limits = fast_math_tunables(texts.values())
        by_tanh = not cls.reduces_rows and has_fast_tanh(texts.values())
        fast_tanh = (half_product.FAST_TANH,) if by_tanh else ()
        source, of_rows, behind = cls._behind_rows(form) if cls.reduces_rows else cls._behind_elements()
        axes = cls._axes()
        # Those of rows ask nothing of the product's: they come first, so that they are enumerated once.
        ordered = {one.name: one for one in of_rows.tunables}
        of_inputs = split_product.OF_INPUTS if cls.other_at >= 0 else ()
        for one in (*products.TUNABLES, *of_inputs, *fast_math, *fast_tanh, *behind.tunables):
            ordered.setdefault(one.name, one)
        limits = (*of_rows.constraints, *products.CONSTRAINTS, *limits, *behind.constraints, *cls._limits_of_inputs())
        return Design(
            source,
            SearchSpace(
                tuple(ordered.values()),
                tuple(dict.fromkeys(limits)),
                starts=(
                    *(cls._start(one, fast_math, texts.values()) for one in products.STARTS),
                    *({**products.TILES, "fast_math": True, choice.name: True} for choice in fast_tanh),
                ),
                rounding=(*products.ROUNDING, *(one for one in _ROUNDING if one in ordered)),
            ),
            axes,
            work_of_inputs if cls.other_at >= 0 else partial(_work, axes),
            modes=("eval", *(("frozen",) if cls.other_at < 0 else ()), *(("train",) if cls.batch_norm_at else ())),
            bulk_copies=products.BULK_COPIES,
        )

    @classmethod
    def _start(
        cls, one: Mapping[str, Value], fast_math: Sequence[Tunable], texts: Collection[str]
    ) -> Mapping[str, Value]:
        """Return what a study of this block begins with for one of `products.STARTS`."""
        is_fast = "weight_parts" not in one or not is_off_near_zero(texts)  # the parts are of fp32 alone
        short = {"sum_stages": _SUM_STAGES_OF_SHORT_ROWS} if cls.triangle == "upper" and "sum_stages" in one else {}
        return {**one, **{choice.name: is_fast for choice in fast_math}, **short}

    @classmethod
    def _limits_of_inputs(cls) -> tuple[Constraint, ...]:
        """Return the constraints of a product of two inputs; with those, or with a triangle, operands are split."""
        if cls.joins:
            return (half_product.tiles_hold(1 + len(cls.others_at)),)
        of_triangle = (*split_product.OF_HALVES, *rounded_product.IN_TILES) if cls.triangle else ()
        if cls.other_at < 0:
            return of_triangle
        limits = (*products.limits_of_inputs(InColumns(*cls.in_columns)), *of_triangle)
        is_whole = Constraint("depth_is_whole", _is_whole)
        limits += (is_whole if cls.batch_norm_at or cls.triangle else split_product.SLICES,)
        if cls.batch_norm_at:
            limits += (Constraint("an_input_does_not_normalise", _does_not_normalise),)
        return limits

    @classmethod
    def _form(cls) -> RowForm:
        """Return the form of the row-by-row work."""
        given = [name for name in ("reductions", "over_rows", "group_norm_at") if getattr(cls, name)]
        if len(given) > 1:
            raise cls.wrong(given[1], f"give one of {', '.join(given)}, not both")
        if cls.over_rows and cls.over_rows not in FORMS:
            raise cls.wrong("over_rows", f"{cls.over_rows!r} is none of {', '.join(FORMS)}")
        if cls.reductions:
            checked_reductions(cls, cls.reductions)
        cls.reduces_rows = bool(given)
        return form_of(cls.over_rows, cls.reductions, has_groups=bool(cls.group_norm_at))

    @classmethod
    def _behind_elements(cls) -> tuple[str, Tuned, Tuned]:
        """Return the functions, and a BatchNorm, in the product's epilogue or in one pass, and their spaces."""
        source = cls._source(cls.function, cls.finish, cls.used)
        cls.linear_at, cls.is_of_rows = tuple(range(len(cls.used))), False
        return source.text(), Tuned((), ()), cls._take(source)

    @classmethod
    def _behind_rows(cls, form: RowForm) -> tuple[str, Tuned, Tuned]:
        """Return a launch that reduces rows, behind a product written as it is, or normalised, and its spaces."""
        function = cls.function
        cls.linear_at = ()
        if cls.batch_norm_at:
            names = used_names(function)
            cls.linear_at = tuple(at for at, one in enumerate(cls.used) if one.name in names)
            source = cls._source(function, "value", [cls.used[at] for at in cls.linear_at])
            function = "value"
        else:
            source = cls._source("value", "value", ())
        # To that launch the values of other layers are tensors.
        used = [one._replace(kind=Kind.ELEMENT) if one.kind is Kind.LAYER else one for one in cls.used]
        rows = RowsBehind(cls.__name__, function, form, cls.finish, used, bool(cls.group_norm_at))
        tuned, of_rows = cls._take(source), rows.space()
        cls.is_of_rows, cls.row_tensors, cls.row_reductions = rows.is_of_rows, rows.tensors, len(form.reductions)
        cls.row_stages = rows.stages.counts
        cls.has_online = rows.stages.online is not None
        head = fast_math_line([cls.function, *rows.texts().values()])
        of_product = left_alone([one for one in tuned.tunables if one.name != "in_place"])
        behind = Tuned(of_product, tuned.constraints)
        return rows.source(source.text(head)), Tuned(left_alone(of_rows.tunables), of_rows.constraints), behind

    @classmethod
    def _source(cls, function: str, finish: str, used: Sequence[Operand]) -> LinearSource:
        normalises = bool(cls.batch_norm_at)
        inputs = InColumns(*cls.in_columns) if cls.other_at >= 0 else None
        return LinearSource(cls.__name__, function, finish, used, normalises, inputs, cls.triangle)

    @classmethod
    def _take(cls, source: LinearSource) -> Tuned:
        """Return the tunables and constraints of the work behind the product itself."""
        cls.by_columns, is_affine = source.by_columns, source.affine is not None
        of_features = (Kind.SCALAR, Kind.PER_TENSOR, Kind.PER_FEATURE) if is_affine else ()
        cls.constants_at = tuple(at for at, one in enumerate(source.used) if one.kind in of_features)
        if cls.batch_norm_at:
            return batch_norm_space(is_affine=is_affine, finishes=source.behind != "value")
        return columns_space() if source.by_columns else elements_space()

    @classmethod
    def _read_layer(cls) -> None:
        """Read what is multiplied."""
        arguments = cls._input_names()
        multiplied = _LAYER.fullmatch(cls.layer)
        taken = multiplied["input"] if multiplied else arguments[0]
        if taken not in arguments:
            raise cls.wrong("layer", f"'{taken}' is no argument of forward ({', '.join(arguments)})")
        if not multiplied and not all(re.fullmatch(r"\w+", name) for name in cls.layer.split(".")):
            raise cls.wrong("layer", 'give the path of an nn.Linear, or a product such as "x @ weight.T"')
        cls.input_at = arguments.index(taken)
        cls.layer_path = "" if multiplied else cls.layer
        cls.weight_path = cls._weight_at(multiplied["weight"] if multiplied else cls.layer)
        cls.is_transposed = multiplied is not None and not multiplied["transposed"]
        is_turned = multiplied is not None and bool(multiplied["turned"])
        cls.other_at = arguments.index(cls.weight_path) if cls.weight_path in arguments else -1
        cls.in_columns = (is_turned, cls.is_transposed)
        cls.is_trained = bool(cls.layer_path)
        if is_turned and cls.other_at < 0:
            raise cls.wrong("layer", f"'{taken}' is transposed, which it may be beside another argument alone")

    @classmethod
    def _weight_at(cls, path: str) -> str:
        """Return the path of the weight of the layer that has this one."""
        return f"{path}.weight" if cls.layer_path else path

    @classmethod
    def _axes(cls) -> dict[str, str | tuple[str, ...]]:
        """Return the problem axes: the layer's, those of the functions' operands, and the normalisation's."""
        taken, of_inputs = cls._input_names()[cls.input_at], cls.other_at >= 0
        for name in (taken, cls.weight_path):
            if any(one.path == name for one in cls.used):
                raise cls.wrong(
                    "function", f"'{name}' goes into the layer, and no element of it is behind one of the output"
                )
        sides = ("out_features", "in_features")
        operands: dict[str, str | tuple[str, ...]] = {
            taken: "first_elements" if of_inputs else ("rows", "in_features"),
            cls.weight_path: sides[::-1] if cls.is_transposed else sides,
        }
        operands |= {cls._weight_at(cls.used[at].path): operands[cls.weight_path] for at in cls.others_at}
        if of_inputs:
            operands[cls.weight_path] = "second_elements" if cls.weight_path != taken else "first_elements"
            between = (Kind.PER_FEATURE, Kind.PER_ROW)
            cls.is_either_way = not (
                cls.reduces_rows or cls.batch_norm_at or cls.triangle or any(one.kind in between for one in cls.used)
            )
        axes = {**operands, **axes_of(cls.used, _AXES_OF_INPUTS if of_inputs else _AXES_OF_KIND)}
        if cls.batch_norm_at:
            axes |= {f"{cls.batch_norm_at}.{name}": ("out_features",) for name in _VECTORS}
        if of_inputs:
            return {**axes, OUTPUT: "outputs"}
        return {**axes, OUTPUT: "rows" if cls.is_of_rows else ("rows", "out_features")}

    def mode(self) -> Mode:
        """Return BatchNorm's own mode, where there is one."""
        if self.batch_norm_at and attrgetter(self.batch_norm_at)(self).training:
            return Mode.TRAIN
        return Mode.FROZEN if self.is_frozen else Mode.EVAL

    def problem(self, *inputs: Any, **named: Any) -> Problem | None:
        """Accept batches of at least one row (two in train mode), and vectors broadcast as declared."""
        for name in (*self._modules, *self._parameters, *self._buffers):
            if hasattr(type(self), name):
                raise self.wrong(name, f"the model has a '{name}' of its own, which this attribute hides: rename that")
        matrices = self._as_matrices(inputs)
        found = super().problem(*matrices, **named)
        if found is None:
            return None
        if found.options.get("mode") == Mode.TRAIN and found.axes.get("rows", 2) < 2:
            return self.unserved("a batch of one row has no variance")
        try:
            made = self._of_inputs(found, inputs) if self.other_at >= 0 else self._of_layer(found, matrices)
        except UnservedError as error:
            return self.unserved(str(error))
        return made if not self.reduces_rows else self._with_features(made)

    def _as_matrices(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the inputs, with one dimension in the place of all but the last, where a layer's has more than two.

        They stay as they are, and are refused, where one of them is no such tensor, or where what stands behind the
        layer is not of each element.
        """
        x = inputs[self.input_at] if self.input_at < len(inputs) else None
        if not isinstance(x, torch.Tensor) or x.dim() < 3 or not self.is_of_any_shape:
            return inputs
        tensors = [one for one in inputs if isinstance(one, torch.Tensor) and one.dim() > 1]
        if not all(one.shape[:-1] == x.shape[:-1] and one.is_contiguous() for one in tensors):
            return inputs
        return [one.flatten(0, -2) if isinstance(one, torch.Tensor) and one.dim() > 1 else one for one in inputs]

    def _of_layer(self, found: Problem, inputs: Sequence[Any]) -> Problem:
        """Return the problem of a layer whose vectors are broadcast as declared."""
        for one, value in zip(self.used, self.values(inputs), strict=True):
            shape = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
            if one.kind is Kind.PER_FEATURE and value.shape[-1:].numel() != value.numel():
                raise UnservedError(f"'{one.path}' is {shape}, which is not one value for each feature")
            if one.kind is Kind.PER_ROW and value.shape[:1].numel() != value.numel():
                raise UnservedError(f"'{one.path}' is {shape}, which is not one value for each row")
            if one.kind is Kind.PER_TENSOR and value.numel() != 1:
                raise UnservedError(f"'{one.path}' has {value.numel()} elements, not one")
        return found

    def _of_inputs(self, found: Problem, inputs: Sequence[Any]) -> Problem:
        """Return the problem of two inputs that fit, and vectors that fit what they make."""
        stacks = self._stacks(inputs)
        require_fitting(stacks, self.used, self.values(inputs))
        rows, features = math.prod(stacks.shape[:-1]), stacks.shape[-1]
        if len(stacks.shape) > 2 and (self.triangle or self.batch_norm_at or self.group_norm_at):
            raise UnservedError("a triangle and a normalisation are of one product alone")
        if self.batch_norm_at and found.axes["out_features"] != features:
            raise UnservedError(f"the BatchNorm is of {found.axes['out_features']} features, not {features}")
        if found.options.get("mode") == Mode.TRAIN and rows < 2:
            raise UnservedError("a batch of one row has no variance")
        return Problem(stacks.axes, found.dtype, found.options)

    def _stacks(self, inputs: Sequence[Any]) -> Stacks:
        given, in_columns = (inputs[self.input_at], inputs[self.other_at]), InColumns(*self.in_columns)
        return stacks_of(*given, in_columns, is_either_way=self.is_either_way)

    def _with_features(self, problem: Problem) -> Problem:
        """Return the problem with the axis of row reductions: the number of elements that are reduced together."""
        axes = dict(problem.axes)
        return Problem({**axes, "features": axes["out_features"] // self._groups()}, problem.dtype, problem.options)

    def _groups(self) -> int:
        """Return the number of parts in which a row is reduced."""
        found: int = attrgetter(self.group_norm_at)(self).num_groups if self.group_norm_at else 1
        return found

    def accepts_layout(self, name: str, tensor: torch.Tensor) -> bool:  # noqa: ARG002
        """Return whether the tensor goes into the product, in which case it is made contiguous first if need be."""
        layers = (self.layer_path or self.weight_path, *(self.places[at][1] for at in self.others_at))
        of_layers = [f"{path}.{tensor}" for path in layers for tensor in ("weight", "bias")]
        return name in (self._input_names()[self.input_at], *(of_layers if self.layer_path else layers))

    def tuned_forward(self, plan: Plan, *inputs: Any, **named: Any) -> torch.Tensor:  # noqa: ARG002
        """Map (…, in_features) to (…, out_features), or to one value for each row."""
        matrices = self._as_matrices(inputs)
        values, stacks = self.values(matrices), self._stacks(inputs) if self.other_at >= 0 else None
        joined: Sequence[torch.Tensor] = ()
        if self.others_at:
            values, joined = self._of_other_layers(plan, matrices[self.input_at], values)
        of_product = [values[at] for at in self.linear_at] if self.reduces_rows else values
        in_place = self.reduces_rows or bool(plan["in_place"])
        weight, bias = (stacks.weight, None) if stacks else self._weight()
        x, in_columns = (stacks.x, InColumns(*self.in_columns)) if stacks else (matrices[self.input_at], None)
        operands = (plan, x, weight, bias, self._exponents, of_product)
        call = LinearCall(*operands, self.by_columns, in_place, self, in_columns, joined)
        made = self._elements(call)
        made = self._of_rows(plan, made, values) if self.reduces_rows else made
        before = stacks.shape[:-1] if stacks else inputs[self.input_at].shape[:-1]
        shape = (*before, *(stacks.shape[-1:] if stacks and not self.reduces_rows else made.shape[1:]))
        # To autograd what a kernel makes is no view of another tensor.
        return made if made.shape == shape else torch.ops.aten._unsafe_view(made, shape)

    def _of_other_layers(
        self, plan: Plan, x: torch.Tensor, values: Sequence[Any]
    ) -> tuple[list[Argument], list[torch.Tensor]]:
        """Return the functions' operands with the values of other layers; or, where the product's kernel makes these
        too, with their biases, and their weights."""
        made, others = list(values), [self._of(values[at]) for at in self.others_at]
        if self.joins and half_product.multiplies_halves(str(plan["product"]), plan.problem):
            for at, (_, bias) in zip(self.others_at, others, strict=True):
                made[at] = None if bias is None else bias.contiguous()
            return made, [weight for weight, _ in others]
        unread = [None if at in self.others_at else one for at, one in enumerate(values)]
        of_product = [] if self.reduces_rows else unread
        for at, (weight, bias), exponents in zip(self.others_at, others, self._other_exponents, strict=True):
            keeper = KeeperOf(self, self.places[at][1])
            operands = (plan, x, weight, bias, exponents, of_product)
            made[at] = self._plain(LinearCall(*operands, self.by_columns, in_place=False, model=keeper))
        return made, []

    def _plain(self, call: LinearCall) -> torch.Tensor:
        """Return the values of another layer, to which no function is applied."""
        whole = (False,) if self.joins else ()
        if not has_passes(str(call.plan["product"])):
            return own_output(call, whole).values
        product = library_product(call.plan, call.model, call.weight, call.bias, call.x)
        return pass_over(call, product, call.bias, *whole) if product.is_partial else product.first

    def trained_forwards(self, plan: Plan) -> list[Callable[..., torch.Tensor]]:
        """Return the reference's forward with its layer's products, or the function behind it too, by kernels."""
        others = self.reduces_rows or self.batch_norm_at or self.triangle or self.passes
        is_all = not others and self.finish == "value"
        ways = plan.once(trained_plans, self.function if is_all else "", self.used)
        return [partial(self._trained_forward, plans) for plans in ways]

    def _trained_forward(self, plans: TrainedPlans, *inputs: Any) -> torch.Tensor:
        """Run a layer with the function behind it, or the reference's forward with the layer's products by kernels."""
        trained = TrainedLayer(plans, self, attrgetter(self.layer_path)(self), self._exponents, [])
        if plans.behind is None or plans.slope is None:
            return self._behind_layer(trained.__call__, inputs)

        def reference(product: torch.Tensor) -> torch.Tensor:
            return self._behind_layer(lambda _: product, inputs)

        return trained._replace(numbers=self.values(inputs), reference=reference)(inputs[self.input_at])

    def _behind_layer(self, layer: Callable[[torch.Tensor], torch.Tensor], inputs: Sequence[Any]) -> torch.Tensor:
        """Run the reference's operations behind another layer."""
        made = replica(self, *held(self))
        attrgetter(self.layer_path)(made).__dict__["forward"] = layer
        return made.reference_forward(*inputs)

    def _elements(self, call: LinearCall) -> torch.Tensor:
        """Return the matrix of the product's values after the function of each of them."""
        if self.batch_norm_at:
            constants = [call.values[at] for at in self.constants_at]
            finishes = not self.reduces_rows and self.finish != "value"
            return normalised(call, Norm(self, attrgetter(self.batch_norm_at)(self), constants, finishes))
        whole = (True,) if self.joins else ()
        if not has_passes(str(call.plan["product"])):
            return own_output(call, whole).values
        product = library_product(call.plan, self, call.weight, call.bias, call.x, call.in_columns)
        if not (product.is_partial or self.triangle) and (self.reduces_rows or self.is_plain):
            return product.first
        return pass_over(call, product, call.bias, *whole)

    def _of_rows(self, plan: Plan, matrix: torch.Tensor, values: Sequence[Any]) -> torch.Tensor:
        """Compute the output from the matrix row by row."""
        (rows, features), groups = matrix.shape, self._groups()
        shape = ((rows, 1) if self.keepdim else (rows,)) if self.is_of_rows else (rows, features)
        output = matrix.new_empty(shape)
        sizes = (rows * groups, features // groups, 1, features)
        stages = self.row_stages[self.has_online and bool(plan["online"])]
        launch_rows(plan, (matrix, *values, output), sizes, self.row_tensors, stages, self.row_reductions)
        return output

    def _weight(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the weight (out_features, in_features), and the bias."""
        return self._of(attrgetter(self.layer_path or self.weight_path)(self))

    def _of(self, layer: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the weight (out_features, in_features), and the bias, of a layer: of a module, or of a parameter."""
        if self.layer_path:
            weight, bias = own_tensors(layer, "weight", "bias")
            return weight, bias
        return (layer.t() if self.is_transposed else layer), None


def _is_whole(product_slices: int) -> bool:
    return product_slices == 1


def _does_not_normalise(normalisation: str) -> bool:
    return normalisation != "weight"


def _work(axes: Axes, problem: Problem) -> Work:
    """Return the least work: matrices cross memory once, and 2·rows·in·out operations of each layer plus a few for each
    element."""
    matrices = {name: names for name, names in axes.items() if isinstance(names, tuple) and len(names) == 2}
    rows, inputs, outputs = (problem.axes[name] for name in ("rows", "in_features", "out_features"))
    layers = sum({*names} == {"in_features", "out_features"} for names in matrices.values())
    return Work(Work.of_axes(problem, matrices).bytes, operations=2 * layers * rows * inputs * outputs)
