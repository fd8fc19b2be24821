"""Row-by-row work on a linear layer's values, behind the product: by the code of the block `Rows`.

The product writes the values as a matrix, and one more launch reduces its rows and writes what is made of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tunebench.kernels.blocks.block import Kind, Operand
from tunebench.kernels.blocks.device_function import used_names
from tunebench.kernels.blocks.reductions import Max, Reduction, Stages, Sum, stages_of
from tunebench.kernels.blocks.rows_source import source_of
from tunebench.kernels.blocks.rows_space import space_of
from tunebench.tuner.space import Constraint, SearchSpace, Tunable

_SOFTMAX = {"row_top": Max("value"), "row_sum": Sum("exp(value - row_top)")}
_LOGSUMEXP = {"row_top": Max("value"), "row_sum": Sum("exp(value - zero_if_infinite(row_top))")}
_TOTAL = {"row_sum": Sum("value")}
_GROUP_NORM = {
    "group_sum": Sum("value"),
    "group_rest": Sum("value - group_sum / features"),
    "group_squares": Sum("square(value - group_sum / features)"),
}
"""The corrected two-pass algorithm (Chan, Golub and LeVeque 1983): of equal values, as a function that saturates leaves
them, the mean is each of them exactly, where what a sum is off by would be all of the output."""


@dataclass(frozen=True)
class RowForm:
    """A form of the field: reductions, and what becomes of a value, `{0}`, or of the row where none is named."""

    reductions: Mapping[str, Reduction]
    value: str


FORMS = {
    "softmax": RowForm(_SOFTMAX, "exp({0} - row_top) / row_sum"),
    "log_softmax": RowForm(_SOFTMAX, "{0} - row_top - log(row_sum)"),
    "logsumexp": RowForm(_LOGSUMEXP, "log(row_sum) + zero_if_infinite(row_top)"),
    "sum": RowForm(_TOTAL, "row_sum"),
    "mean": RowForm(_TOTAL, "row_sum / features"),
    "max": RowForm({"row_top": Max("value")}, "row_top"),
}
"""The forms by the names that `over_rows` has for them."""

_GROUP_NORM_FORM = RowForm(
    _GROUP_NORM,
    "({0} - group_sum / features - group_rest / features) * "
    "rsqrt((group_squares - group_rest * group_rest / features) / features + group_eps) * group_weight + group_bias",
)
_LEFT = ("load_hint", "store_hint", "waves", "rows_per_thread", "statistics_rows")
"""Tunables that keep their first values where rows are reduced: the product takes most of the time, and has many."""
_LEAST_THREADS = 128
_READ = "row_value"
"""The element of the matrix that the product has written, once it is prepared by the function in front of the rows."""


def group_norm_operands(path: str) -> tuple[Operand, ...]:
    """Return the operands that a GroupNorm has in addition to its statistics."""
    return (
        Operand("group_eps", Kind.SCALAR, f"{path}.eps", None),
        Operand("group_weight", Kind.PER_FEATURE, f"{path}.weight", None),
        Operand("group_bias", Kind.PER_FEATURE, f"{path}.bias", None),
    )


def form_of(over_rows: str, reductions: Mapping[str, Reduction], *, has_groups: bool) -> RowForm:
    """Return the form that a class's attributes select."""
    if has_groups:
        return _GROUP_NORM_FORM
    return FORMS[over_rows] if over_rows else RowForm(reductions, "{0}")


@dataclass(frozen=True)
class RowsBehind:
    """The rows' part of a kernel.

    Attributes:
        owner: the class, for the compiler's messages.
        function: of a value of the matrix, before its row is reduced.
        finish: of what the form makes of it, or of its row.
        used: the operands of all of these.
        has_groups: a row is reduced in groups of features.
    """

    owner: str
    function: str
    form: RowForm
    finish: str
    used: Sequence[Operand]
    has_groups: bool

    @cached_property
    def stages(self) -> Stages:
        """In which pass each reduction is made."""
        return stages_of(self.form.reductions)

    @property
    def is_of_rows(self) -> bool:
        """Whether there is one value for each row."""
        wide = {one.name for one in self.used if one.kind in (Kind.ELEMENT, Kind.PER_FEATURE)}
        if "{0}" in self.form.value:
            wide.add("value")
        return (self._is_plain or "{0}" not in self.form.value) and not wide & set(used_names(self.finish))

    @property
    def tensors(self) -> int:
        """How many tensors have an element for each of the output's, the product among them."""
        return 1 + sum(one.kind is Kind.ELEMENT for one in self.used)

    @property
    def _is_plain(self) -> bool:
        return self.form.value == "{0}"

    def source(self, before: str) -> str:
        """Return the translation unit.

        Args:
            before: that of the product.
        """
        read = Operand(_READ, Kind.ELEMENT, "", None)
        return source_of(
            self.owner,
            (read, *(self._of_row(one) for one in self.used)),
            self.form.reductions,
            self.stages,
            self.texts(),
            is_of_rows=self.is_of_rows,
            before=before,
            prepared="" if self.function == "value" else _of_value(self.function),
        )

    def _of_row(self, operand: Operand) -> Operand:
        """Return an operand as the code for rows takes it: where a row is a group, it calls features channels."""
        is_of_features = self.has_groups and operand.kind is Kind.PER_FEATURE
        return operand._replace(kind=Kind.PER_CHANNEL) if is_of_features else operand

    def space(self) -> SearchSpace:
        """Return the space of the launches that reduce rows."""
        has_online = self.stages.online is not None
        texts = [self.function, *self.texts().values()]
        found = space_of(texts, self.tensors, has_online=has_online, is_of_rows=self.is_of_rows)
        return SearchSpace(found.tunables, (*found.constraints, Constraint("a_block_has_few_rows", _has_few_rows)))

    def texts(self) -> dict[str, str]:
        """Return device functions of an element that the function has prepared, by the attributes they come from."""
        texts = {f"reductions[{name!r}]": _of_value(one.text) for name, one in self.form.reductions.items()}
        if self._is_plain and self.is_of_rows:
            return {**texts, "function": _statements(self.finish)}
        return {**texts, "function": _of_value(self.finish, self.form.value.format(_READ))}


def left_alone(tunables: Sequence[Tunable]) -> tuple[Tunable, ...]:
    """Return the tunables, without a choice for those that are worth little behind a product not tuned."""
    return tuple(replace(one, when=_never) if one.name in _LEFT else one for one in tunables)


def _never() -> bool:
    return False


def _has_few_rows(keep: str, block_size: int, row_threads: int) -> bool:
    """Return whether a block has several rows only where these have few threads."""
    return keep == "split" or block_size == max(row_threads, _LEAST_THREADS)


def _of_value(text: str, value: str = _READ) -> str:
    return f"const auto value = {value};\n{_statements(text)}"


def _statements(text: str) -> str:
    return text if ";" in text else f"return {text};"
