"""Each kernel as an operator of PyTorch's: what a compiled or exported program calls where eager mode calls `forward`.

The operator is given the inputs, the module's parameters and buffers, the numbers among its attributes, and a key by
which the module is found when the program runs.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from tunebench.kernels.runtime.gradients import differentiate
from tunebench.kernels.runtime.ordinary import held
from tunebench.kernels.runtime.outline import NOTHING, Outline, Tensors, outline_under
from tunebench.kernels.runtime.policy import Policy, accuracy_for, use_policy
from tunebench.kernels.runtime.reference_call import Watch, WithoutMemory
from tunebench.kernels.runtime.traced_call import Given, shapes_of
from tunebench.tuner.problem import Accuracy

Operator: TypeAlias = Any  # torch._ops.OpOverload

_GIVEN = "Tensor[] tensors, Tensor[] parameters, Tensor[] buffers, float[] numbers, str layout, str module"
_NOT_IN_A_GRAPH = (torch.Tag.cudagraph_unsafe,) if hasattr(torch.Tag, "cudagraph_unsafe") else ()

_MOST_SETTLED = 256

_library = torch.library.Library("tunebench", "FRAGMENT")  # type: ignore[no-untyped-call]
_defined: set[str] = set()


@dataclass(frozen=True, eq=False)
class Operators:
    """The operators of one kernel.

    Attributes:
        model: the kernel's own.
        forward: by whether the module is frozen, and whether a gradient may be taken. Gives the output, and where the
            forward writes to buffers, for each buffer its new value, or nothing (an empty tensor) if it keeps its own.
            A frozen one is never recorded into a CUDA graph by `torch.compile`: what is derived from tensors is looked
            at in every call. Where no gradient is taken, one that cannot give any costs the host 20 µs less.
        backward: the wanted gradients of the output, by tensors and parameters.
    """

    model: type[Any]
    forward: Mapping[tuple[bool, bool], Operator]
    backward: Operator

    @classmethod
    def define(cls, model: type[Any]) -> Operators:
        """Define the operators of a kernel's model, under the kernel's name."""
        name = _free_name(model.kernel.name)
        backward = _define(f"{name}_backward(Tensor gradient, {_GIVEN}, bool[] wanted) -> Tensor[]")
        forward = {}
        for frozen, differentiable in itertools.product((False, True), repeat=2):
            full = f"{name}{'_frozen' if frozen else ''}{'' if differentiable else '_inference'}"
            forward[frozen, differentiable] = _define(
                f"{full}({_GIVEN}) -> Tensor[]", *(_NOT_IN_A_GRAPH if frozen else ())
            )
        made = cls(model, forward, backward)
        _implement(backward, made.run_backward, made.run_backward_on_fakes)
        for (_, differentiable), one in forward.items():
            _implement(one, made.run, made.run_on_fakes)
            if differentiable:
                torch.library.register_autograd(one.name(), made.differentiate, setup_context=_save, lib=_library)
            torch.library.register_vmap(one.name(), made.run_batched, lib=_library)
        return made

    def run(self, *arguments: Any) -> list[torch.Tensor]:
        """Run the module's own eager forward, which chooses the kernel or the reference."""
        given = Given(*arguments)
        outline = outline_under(self.model, given.module)
        original: Any = None if outline.original is None else outline.original()
        call = (given.layout, *given.numbers)
        if original is not None and (settled := original._settled.get(call)) is not None:
            holdings, values = settled
            if (
                original._known.of(original) is holdings
                and all(map(operator.is_, holdings.parameters, given.parameters))
                and all(map(operator.is_, holdings.buffers, given.buffers))
            ):
                rest = iter(given.tensors)
                return [_forward(original, [next(rest) if value is NOTHING else value for value in values])]
        inputs, numbers = given.put_together(given.tensors)
        written = self._written(outline, given, numbers)
        whole = None if any(written) else outline.whole(given.parameters, given.buffers, numbers)
        if whole is not None:
            result = _forward(whole, inputs)
            if given.layout.lower() == given.layout:
                _settle(whole, call, inputs)
            return [result]
        buffers = [value.clone() if one else value for value, one in zip(given.buffers, written, strict=True)]
        module = outline.bind(given.parameters, buffers, numbers)
        return _results(_forward(module, inputs), held(module)[1], written)

    def run_on_fakes(self, *arguments: Any) -> list[torch.Tensor]:
        """Return the result of `run`, in shapes and types alone."""
        given = Given(*arguments)
        return _results(*_run_on_fakes(outline_under(self.model, given.module), given))

    def _written(self, outline: Outline, given: Given, numbers: Sequence[Any]) -> list[bool]:
        """Return which buffers a forward writes to; found once from the reference, without running it."""
        if not given.buffers:
            return []
        decides = tuple(number for number in numbers if isinstance(number, int))
        if decides not in outline.written:
            with WithoutMemory() as mode, torch.no_grad():
                tensors, parameters, buffers = ([mode.from_tensor(one) for one in values] for values in given[:3])
                fakes = given._replace(tensors=tensors, parameters=parameters, buffers=buffers)
                try:
                    _, _, outline.written[decides] = _run_on_fakes(outline, fakes)
                except (RuntimeError, TypeError, ValueError):
                    # What cannot run on shapes alone, such as momentum by counting, may write to any of them.
                    outline.written[decides] = [True] * len(given.buffers)
        return outline.written[decides]

    def differentiate(self, ctx: Any, gradients: list[torch.Tensor | None]) -> tuple[Any, ...]:
        """Call the operator's backward: an operator of its own, which a graph runs only if a gradient is taken."""
        counts, constants = ctx.counts, ctx.constants
        tensors, parameters, buffers = _split(ctx.saved_tensors, counts)
        wanted = [*ctx.needs_input_grad[0], *ctx.needs_input_grad[1]]
        found: list[torch.Tensor | None] = [None] * len(wanted)
        if gradients[0] is not None and any(wanted):
            arguments = (gradients[0], tensors, parameters, buffers, *constants, wanted)
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                found = self._gradients(*arguments, higher=True)  # to be differentiated once more
            else:
                made = iter(self.backward(*arguments))
                found = [next(made) if one else None for one in wanted]
        # An empty list of numbers counts as a list, any other as one argument.
        for_numbers: list[None] | None = None if constants[0] else []
        return found[: counts[0]], found[counts[0] :], [None] * counts[2], for_numbers, None, None

    def run_backward(self, gradient: torch.Tensor, *arguments: Any) -> list[torch.Tensor]:
        """Return the gradients that are wanted, by the reference's operations; zeros where there is none."""
        given, wanted = Given(*arguments[:-1]), arguments[-1]
        outline = outline_under(self.model, given.module)
        original: Any = None if outline.original is None else outline.original()
        if original is not None:
            original._note_backward()
        flags = iter(wanted)
        tensors, parameters = (
            [value.detach().requires_grad_(next(flags)) for value in values]
            for values in (given.tensors, given.parameters)
        )
        found = self._gradients(gradient, tensors, parameters, *arguments[2:], higher=False)
        every = zip((*tensors, *parameters), found, wanted, strict=True)
        return [_like(value, one) for value, one, is_wanted in every if is_wanted]

    @staticmethod
    def run_backward_on_fakes(_: torch.Tensor, *arguments: Any) -> list[torch.Tensor]:
        """Return the result of `run_backward`, in shapes and types alone."""
        given, wanted = Given(*arguments[:-1]), arguments[-1]
        every = (*given.tensors, *given.parameters)
        return [torch.empty_like(value) for value, one in zip(every, wanted, strict=True) if one]

    def _gradients(self, gradient: torch.Tensor, *arguments: Any, higher: bool) -> list[torch.Tensor | None]:
        given, wanted = Given(*arguments[:-1]), arguments[-1]
        outline = outline_under(self.model, given.module)
        buffers = [value.detach().clone() for value in given.buffers]

        def run(values: Tensors) -> torch.Tensor:
            inputs, numbers = given.put_together(values[: len(given.tensors)])
            module = outline.bind(values[len(given.tensors) :], buffers, numbers)
            return module.reference_forward(*inputs)  # type: ignore[no-any-return]

        return differentiate(run, (*given.tensors, *given.parameters), wanted, (gradient,), higher=higher)

    def run_batched(self, info: Any, dimensions: Any, *arguments: Any) -> tuple[list[torch.Tensor], list[int]]:
        """Run the operator under `vmap`: one call for each member of the batch."""
        given = Given(*arguments)

        def member(number: int) -> Given:
            pairs = (zip(values, where, strict=True) for values, where in zip(given[:3], dimensions[:3], strict=True))
            chosen = [[one if at is None else one.select(at, number) for one, at in values] for values in pairs]
            return given._replace(tensors=chosen[0], parameters=chosen[1], buffers=chosen[2])

        results = [self.forward[False, True](*member(number)) for number in range(info.batch_size)]
        batched = [torch.stack(values) for values in zip(*results, strict=True)]
        return batched, [0] * len(batched)


def _settle(module: Any, call: tuple[Any, ...], inputs: Sequence[Any]) -> None:
    """Remember that the module itself serves such calls; or where the reference does so for good, at which shapes."""
    problem = module.identify(*inputs)
    problem = problem and problem.at(Accuracy.under(problem.options, accuracy_for(module.accuracy)))
    decided = [
        plan
        for occasion, (_, plan) in module._plans.items()
        if occasion.problem == problem and occasion.policy is not Policy.REFERENCE
    ]
    if module._pinned is None and decided and not any(decided):
        module._lost[shapes_of([one for one in inputs if isinstance(one, torch.Tensor)])] = None
    elif module._pinned is not None or decided:
        if len(module._settled) >= _MOST_SETTLED:
            module._settled.clear()
        values = [NOTHING if isinstance(value, torch.Tensor) else value for value in inputs]
        module._settled[call] = (module._known.of(module), values)


def _forward(module: Any, inputs: Sequence[Any]) -> torch.Tensor:
    # While a compiler runs it, as to fold constants, forward would ask for this operator again.
    if torch.compiler.is_compiling():
        return module.reference_forward(*inputs)  # type: ignore[no-any-return]
    inputs = tuple(inputs)
    for known in module._known.latest:
        if known.is_like(inputs) and known.stands(module):
            return module._serve(known.served, inputs)  # type: ignore[no-any-return]
    if "torch._inductor.cudagraph_trees" not in sys.modules:
        return module.forward(*inputs)  # type: ignore[no-any-return]
    # This call may be the one before a CUDA graph is recorded: what is not ready now would be missing in every replay.
    with use_policy(wait=True):
        return module.forward(*inputs)  # type: ignore[no-any-return]


def _results(result: torch.Tensor, buffers: Tensors, written: Sequence[bool]) -> list[torch.Tensor]:
    if not any(written):
        return [result]
    return [result, *(value if one else value.new_empty(0) for value, one in zip(buffers, written, strict=True))]


def _run_on_fakes(outline: Outline, given: Given) -> tuple[torch.Tensor, Tensors, list[bool]]:
    """Run the reference's forward on fake tensors: return the output, the buffers, and which of them it wrote to."""
    inputs, numbers = given.put_together(given.tensors)
    before = [value.clone() for value in given.buffers]
    module = outline.bind(given.parameters, before, numbers)
    with Watch(before) as watch:
        result = module.reference_forward(*inputs)
    after = held(module)[1]
    replaced = map(operator.is_not, before, after)
    return result, after, [*map(operator.or_, watch.written, replaced)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    given = Given(*inputs)
    # A buffer that is about to be written to is not what it was when the gradient is taken.
    kept = [old.clone() if new.numel() else old for old, new in zip(given.buffers, output[1:], strict=False)]
    ctx.save_for_backward(*given.tensors, *given.parameters, *(kept or given.buffers))
    ctx.counts, ctx.constants = [len(values) for values in given[:3]], given[3:]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _split(values: Tensors, counts: Sequence[int]) -> Iterator[list[torch.Tensor]]:
    rest = iter(values)
    return (list(itertools.islice(rest, count)) for count in counts)


def _like(value: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
    """Return a gradient as `run_backward_on_fakes` announces it: in memory of its own, with the tensor's strides."""
    made = torch.empty_like(value)
    return made.zero_() if gradient is None else made.copy_(gradient)


def _free_name(name: str) -> str:
    """Return the kernel's name, numbered where this process has another kernel of that name."""
    names = itertools.chain([name], (f"{name}_{count}" for count in itertools.count(2)))
    free = next(one for one in names if one not in _defined)
    _defined.add(free)
    return free


def _define(schema: str, *tags: torch.Tag) -> Operator:
    name: str = _library.define(schema, tags=(torch.Tag.pt2_compliant_tag, *tags))  # type: ignore[no-untyped-call]
    return getattr(torch.ops.tunebench, name.partition("(")[0]).default


def _implement(one: Operator, run: Callable[..., Any], on_fakes: Callable[..., Any]) -> None:
    torch.library.impl(one.name(), ("cpu", "cuda"), run, lib=_library)
    torch.library.register_fake(one.name(), on_fakes, lib=_library)
