"""The answers of a reference at all sizes that the gate asks about, and pairs of it and a contender.

The battery's questions are about logic, not size, so they are asked at a reduced size where the configuration is valid
there: what they cost does not grow with the problem. The reference's answers are kept for the next variant.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.gate.case import Case, Expected
from tunebench.tuner.gate.distributions import InputChange, all_changed
from tunebench.tuner.gate.draw import FIXED, Draw
from tunebench.tuner.gate.effort import Limit
from tunebench.tuner.gate.faults import FAILURES, ReferenceRefusal
from tunebench.tuner.gate.invariants import Form
from tunebench.tuner.gate.manner import Manner, Recording
from tunebench.tuner.gate.model import ORDINARY, CallOptions, Model, in_part
from tunebench.tuner.gate.oracle import Oracle, ask, consult_reference
from tunebench.tuner.gate.sources import Sizes, Source, capped, divided
from tunebench.tuner.gate.tolerance import FEW_SAMPLES_MULTIPLE, REFERENCE_MULTIPLE
from tunebench.tuner.gate.values import tensors_in
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Accuracy

_MOST_ELEMENTS = 1 << 16  # of all inputs of the reduced problem, and of its parameters
_MOST_KEPT_ELEMENTS = 1 << 20  # an answer with more is computed anew for every variant
_ALIKE = 4.0  # errors of one precision differ less than that between sizes
_AS_LARGE = 1e-3  # beside the problem's own: of smaller inputs, an output is small by right
_MOST_KEPT_SIZES = 2  # left as they are where the binary is for one value of them
_CAPS = (128, 64, 32, 16, 8, 4)
_DRAWS = 3
_LIMIT = Limit(1 << 27, 10.0)
_NEAR = 1 << 26
"""Elements up to which a reference is taken to make as many more as its sizes grow by, all of them together."""


@dataclass
class Pair:
    """A reference and a contender with the same weights, which go through the same changes.

    Attributes:
        source: the reference's file at this pair's sizes.
        manner: that both are in.
        key: what tells this pair from those of other sizes and modes.
        draw: what the run draws.
        asked: every question so far, for the state that an answer depends on.
    """

    source: Source
    manner: Manner
    reference: Model
    candidate: Model
    key: str
    draw: Draw
    asked: list[str] = field(default_factory=list)

    def both(self, action: Callable[[Model], object]) -> None:
        """Do the same to both."""
        action(self.reference)
        action(self.candidate)

    def change(self, name: str) -> None:
        """Make one of `CHANGES` of both."""
        self.both(lambda model: model.change(name))

    def copied(self, *, pickled: bool = False) -> Pair:
        """Copies of both, see `Model.copied`."""
        key = f"{self.key}, a copy after {self.asked}"
        reference, candidate = (model.copied(pickled=pickled) for model in (self.reference, self.candidate))
        return Pair(self.source, self.manner, reference, candidate, key, self.draw)

    @property
    def mode(self) -> Mode:
        """The mode that both are in."""
        return self.manner.mode

    def twin(self, mode: Mode | None = None, state: Mapping[str, torch.Tensor] | None = None) -> Model:
        """Make one more reference with the same weights, or these, in the same manner or in another mode."""
        state = self.reference.state() if state is None else state
        return in_part(self.source.model(mode or self.mode, state), self.manner)

    def inputs(self, number: int) -> tuple[Any, ...]:
        """The reference's own inputs, the run's of that number."""
        return self.source.inputs(self.draw.seed_of(number))

    def names(self, inputs: Sequence[Any]) -> Sequence[str]:
        """The inputs' names in the reference's signature, or else their numbers."""
        names = self.reference.input_names(len(inputs))
        return names if len(names) == len(inputs) else [f"input {number}" for number in range(1, len(inputs) + 1)]

    def changed(self, inputs: Sequence[Any], change: InputChange, number: int = 0) -> tuple[Any, ...]:
        """Every input changed, with the run's random numbers of that number and those behind it."""
        return all_changed(inputs, change, self.draw.seed_of(number))


class Answers:
    """The reference of one problem, and what it has answered so far.

    Attributes:
        source: the reference file at the problem's own sizes.
        oracle: the reference's answers at these sizes. The error that they allow passes at other sizes too, where a
            library may happen to choose a more precise algorithm for the reference.
        mode: that the models are in.
        original: the reference's model at these sizes, which remembers its first state.
        draw: what is asked of it, as far as that is drawn.
    """

    def __init__(self, source: Source, oracle: Oracle, mode: Mode, original: Model, draw: Draw = FIXED) -> None:
        self.source = source
        self.draw = draw
        self.original = original
        self.oracle = oracle
        self._own_cases = oracle.cases
        self._tolerance = oracle.tolerance
        self._own_error = max(case.own_error for case in oracle.cases)
        self._alike: dict[str, bool] = {}
        self._forms: dict[str, Form] = {}
        self._draws: dict[str, Sequence[tuple[Any, ...]]] = {}
        self.device = source.device
        self.mode = mode
        self._kept: dict[tuple[str, str], Case | None] = {}
        self._sources: dict[str, Source | None] = {}
        self._reduced: Source | None = None
        self._serving: list[Source] = []
        self._takes: dict[Manner, bool] = {}
        self._errors: dict[str, float] = {}

    @classmethod
    def consult(
        cls,
        source: Source,
        mode: Mode,
        accuracy: Accuracy = Accuracy.TOLERANCE,
        original: Model | None = None,
        draw: Draw = FIXED,
    ) -> Answers:
        """Ask the reference for its answers at the problem's own sizes; see `consult_reference`.

        Args:
            original: its model; None to have it made.
        """
        original = original or source.model(mode)
        renew = partial(source.model, mode, original.state())
        return cls(source, consult_reference(source, original, accuracy, draw, renew), mode, original, draw)

    def beside(self, source: Source) -> Answers:
        """Return the same of a reference in another process: nothing but the oracle is shared."""
        original = source.model(self.mode, self.oracle.state)
        original.remember()
        return Answers(source, self.oracle, self.mode, original, self.draw)

    def revive(self) -> bool:
        """Have the reference run in a new process, in place of one that is gone; whether that is possible."""
        if not self.source.revive():
            return False
        self.original = self.source.model(self.mode, self.oracle.state)
        self.original.remember()
        return True

    def at(self, sizes: Mapping[str, int | float]) -> Source | None:
        """The reference at other sizes; None where its file makes no model or no inputs of them."""
        key = str(dict(sizes))
        if key not in self._sources:
            try:
                self._sources[key] = self.source.resized(sizes)
            except (*FAILURES, KernelFolderError):
                self._sources[key] = None
        return self._sources[key]

    @property
    def reduced(self) -> Source:
        """The reference at sizes of which nothing is large; its own sizes where it takes no smaller ones."""
        if self._reduced is None:
            self._reduced = self._reduce()
        return self._reduced

    def effort(self, source: Source, changes: Sizes, limit: Limit, usual: int = 0) -> int | None:
        """Count what the reference makes in a call at other sizes than a source's; see `Source.effort`.

        Args:
            usual: what it makes at the source's own; 0 where nobody knows.
        """
        whole = {name: size for name, size in self.source.sizes.items() if isinstance(size, int)}
        wanted = {**source.sizes, **changes}
        growth = math.prod(max(1.0, wanted[name] / (source.sizes[name] or 1)) for name in whole)
        is_smaller = all(wanted[name] <= size for name, size in whole.items())
        is_near = 0 < usual * growth <= _NEAR
        return source.effort(changes, limit, is_known=is_smaller or is_near)

    def reductions(self) -> Iterator[Source]:
        """The reference at smaller sizes, in the order in which they are tried.

        First come the sizes that served earlier contenders, then `reduced`. Then come variations of `reduced` that keep
        one or two sizes of the problem, since a binary may have those compiled in.
        """
        yield from self._serving
        reduced = self.reduced
        yield reduced
        changed = [name for name, size in self.source.sizes.items() if reduced.sizes[name] != size]
        for count in range(1, min(_MOST_KEPT_SIZES, len(changed) - 1) + 1):
            for names in itertools.combinations(changed, count):
                if source := self.at({**reduced.sizes, **{name: self.source.sizes[name] for name in names}}):
                    yield source

    def is_alike(self, source: Source) -> bool:
        """Whether the reference is about as imprecise at these sizes as at its own, where that shows at all: a library
        that may use less than full precision does so for some sizes only."""
        if self._own_error * REFERENCE_MULTIPLE <= self._tolerance:
            return True
        key = str(dict(source.sizes))
        if key not in self._alike:
            model, inputs = source.model(self.mode), source.inputs(self.draw.seed_of(0))
            try:
                case = ask(model, "precision", inputs, accuracy=self.oracle.beside)
                self._alike[key] = case.own_error >= self._own_error / _ALIKE
            except ReferenceRefusal:
                self._alike[key] = False
        return self._alike[key]

    def draws(self, source: Source) -> Sequence[tuple[Any, ...]]:
        """Some draws of the inputs at these sizes."""
        key = str(dict(source.sizes))
        if key not in self._draws:
            self._draws[key] = [source.inputs(self.draw.seed_of(number)) for number in range(1, _DRAWS + 1)]
        return self._draws[key]

    def form(self, source: Source) -> Form:
        """The form that all draws of the inputs have at these sizes."""
        key = str(dict(source.sizes))
        if key not in self._forms:
            self._forms[key] = Form.of(self.draws(source))
        return self._forms[key]

    def error_of(self, pair: Pair, label: str, draws: Iterable[tuple[Any, ...]]) -> float:
        """Return the largest error that the pair's reference makes itself on some draws; 0 where it refuses one."""
        key = f"{pair.key} {pair.asked} {label}"
        if key not in self._errors:
            try:
                cases = (ask(pair.twin(), label, inputs, accuracy=self.oracle.beside) for inputs in draws)
                self._errors[key] = max(case.own_error for case in cases)
            except ReferenceRefusal:
                self._errors[key] = 0.0
        return self._errors[key]

    def takes(self, manner: Manner, source: Source) -> bool:
        """Whether the reference can be called in a manner; of any but inference mode its answers tell."""
        if manner.recording is not Recording.INFERENCE:
            return True
        if manner not in self._takes:
            options = CallOptions(byte=None, guarded=False, recording=manner.recording)
            try:
                model = in_part(source.model(manner.mode), manner)
                model.call(source.inputs(self.draw.seed_of(1)), options)
            except FAILURES:
                self._takes[manner] = False
            else:
                self._takes[manner] = True
        return self._takes[manner]

    def note_serving(self, source: Source) -> None:
        """Try these sizes first for the next contender, unless nothing is smaller in them."""
        if source is self.source:
            return
        self._serving = [source, *(other for other in self._serving if other is not source)]

    def _reduce(self) -> Source:
        first: Source | None = None
        for reduction in (capped, divided, self._one_by_one):
            if (source := self._small(reduction)) is None:
                continue
            if self._tells_apart(source):
                return source
            first = first or source
        return first or self.source

    def _one_by_one(self, sizes: Sizes, cap: int) -> Sizes:
        """The same with each whole number within the cap, or halved as often as may be, where the reference takes that
        beside the others: some are bound to each other, or to numbers within the file."""
        for name, size in sizes.items():
            if isinstance(size, int) and size > cap:
                halves = (size >> times for times in range(size.bit_length() - 1, 0, -1) if size % (1 << times) == 0)
                for fewer in (cap, *(half for half in halves if half > cap)):
                    with contextlib.suppress(*FAILURES):
                        self.source.elements({**sizes, name: fewer})
                        sizes = {**sizes, name: fewer}
                        break
        return sizes

    def _small(self, reduction: Callable[[Sizes, int], Sizes]) -> Source | None:
        """The reference at the largest sizes of which nothing is large; None where it takes none."""
        for cap in _CAPS:
            sizes = reduction(self.source.sizes, cap)
            if sizes == self.source.sizes and not _is_small(self._own_cases[0].inputs, self.original):
                continue
            if self.effort(self.source, sizes, _LIMIT) is None:
                continue  # sizes that are multiplied may be large together
            if (source := self.at(sizes)) is None:
                return None
            model, inputs = source.model(Mode.TRAIN), source.inputs(self.draw.seed_of(0))
            try:
                model.call(inputs, CallOptions(byte=None, guarded=False))
            except FAILURES:
                return None
            if _is_small(inputs, model):
                return source
        return None

    def _tells_apart(self, source: Source) -> bool:
        """Whether answers at these sizes tell a right one from none, unlike the zeros that a normalisation makes of one
        feature."""
        try:
            return not consult_reference(source, source.model(self.mode)).degenerate
        except (*FAILURES, ReferenceRefusal):
            return False

    def case(
        self,
        pair: Pair,
        label: str,
        inputs: Callable[[], tuple[Any, ...]],
        options: CallOptions = ORDINARY,
        error: float = 0.0,
        *,
        everywhere: bool = False,
    ) -> Case | None:
        """Return what the pair's reference makes of these inputs, None where it refuses them.

        Args:
            options: how it is called, as far as that matters for the answer.
            error: passes, as several times the reference's own does.
            everywhere: as in `ask`.
        """
        pair.asked.append(label)
        key = (pair.key, str(pair.asked))
        if key in self._kept:
            self._catch_up(pair.reference, self._kept[key])
            return self._kept[key]
        try:
            case = ask(
                pair.reference,
                label,
                inputs(),
                options.autocast,
                everywhere=everywhere,
                accuracy=self.oracle.beside,
                seed=self.draw.seed,
                recording=options.recording,
            )
            output = {path: self._allowing(path, one, error, case.inputs) for path, one in case.output.items()}
            case = replace(case, output=output)
        except ReferenceRefusal:
            case = None
        if case is None or (case.elements <= _MOST_KEPT_ELEMENTS and not self.oracle.keeps_state):
            self._kept[key] = case
        return case

    def _allowing(self, path: str, expected: Expected, error: float, inputs: Sequence[Any]) -> Expected:
        """The same, allowing the errors of few samples, and what passes at the problem's own sizes."""
        found = (case.output.get(path) for case in self._own_cases)
        alike = [there for there in found if there is not None and there.like.dtype == expected.like.dtype]
        size = max((float(there.scale.max()) for there in alike), default=0.0)
        if expected.vanishes_beside(size) and _largest(inputs) >= _AS_LARGE * _largest(self._own_cases[0].inputs):
            expected = expected.relative_to(size)
        bounds = (there.bound for there in alike)
        # A reference that multiplies in TF32 at the problem's own sizes may have another algorithm at reduced ones.
        own = max(one.own.max_relative for one in (expected, *alike))
        return replace(expected, allowance=max(expected.allowance, error, FEW_SAMPLES_MULTIPLE * own, *bounds))

    @staticmethod
    def _catch_up(reference: Model, case: Case | None) -> None:
        """The call that is spared would have moved the buffers."""
        if case is not None and case.expected_buffers:
            reference.set_buffers(case.expected_buffers)


def _is_small(inputs: Sequence[Any], model: Model) -> bool:
    """Whether neither inputs nor parameters have more elements than a reduced problem's."""
    return max(sum(tensor.numel() for tensor in tensors_in(inputs)), model.parameter_elements()) <= _MOST_ELEMENTS


def _largest(inputs: Sequence[Any]) -> float:
    """The largest finite number among the inputs that have a point."""
    floating = (tensor for tensor in tensors_in(inputs) if tensor.is_floating_point() and tensor.numel())
    return max((float(tensor.detach().abs().nan_to_num(0.0, posinf=0.0).max()) for tensor in floating), default=0.0)
