"""The base of every `ModelNew`: runs the kernel wherever it can serve a call, else the reference's operations."""

from __future__ import annotations

import abc
import copy
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar, NoReturn, Self, TypeVar

import torch
from torch import is_grad_enabled, nn
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.nn.utils.parametrize import is_parametrized

from tunebench.kernels.runtime import policy as policies
from tunebench.kernels.runtime.attributes import changed
from tunebench.kernels.runtime.axes import UnservedError, sizes_of
from tunebench.kernels.runtime.decision import Decided, Occasion
from tunebench.kernels.runtime.derived import DerivedTensors, Source
from tunebench.kernels.runtime.dispatch import look, may_watch
from tunebench.kernels.runtime.guards import version_of_attributes
from tunebench.kernels.runtime.latest import Latest
from tunebench.kernels.runtime.operators import Operators
from tunebench.kernels.runtime.ordinary import hooks_of_all, look_at
from tunebench.kernels.runtime.outline import OWN, note
from tunebench.kernels.runtime.policy import Policy, accuracy_for, policy_for
from tunebench.kernels.runtime.reference_call import (
    ReferenceCall,
    describe_reference,
    identify,
    watch_reference,
)
from tunebench.kernels.runtime.selection import Choice
from tunebench.kernels.runtime.served import KnownCalls, Precedent, Served, kind_of_call
from tunebench.kernels.runtime.snapshot import has_parts, parts
from tunebench.kernels.runtime.traced_call import call as traced_call
from tunebench.kernels.runtime.traced_call import is_only_forward
from tunebench.tuner.device import Device
from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.kernel import Kernel, Mode, Plan
from tunebench.tuner.problem import Accuracy, Problem

Value = TypeVar("Value")

_MISSING = object()
_MOST_PROBLEMS = 4096
"""Upper limit of the problems that a module remembers decisions for."""


class TunedModule(nn.Module, abc.ABC):
    """A model whose forward runs a tuned kernel, and the reference's own operations where no kernel can serve.

    Constructing one touches no database and compiles nothing. The first forward of a problem on a device looks its
    configuration up and keeps it; what is not built yet is built in the background, and the reference's operations
    serve until it is. `choices` says what was chosen and where it came from. A call under autocast, a functorch
    transform, forward-mode differentiation or a tracer takes the reference's operations, and so does one with tensors
    that are not plain memory (fake tensors, subclasses).

    A call that needs a gradient runs the kernel too, as one node of the autograd graph (see `gradients.py`). Once a
    gradient has been taken the module is being trained, and calls that need one take one of `trained_forwards` whose
    steps are found to be faster than the reference's, else the reference's operations; `eval()` ends that.

    Nothing that depends on the values of parameters or buffers is kept from one call to the next, so that any change to
    them changes the next output, unless the module is frozen: see `freeze`.
    """

    kernel: ClassVar[Kernel]
    """The kernel, as `Kernel.declare` returns it."""
    _operators: ClassVar[Operators]
    own_forward: ClassVar[Callable[..., torch.Tensor] | None] = None
    """The `forward` of this class; None where the kernel's author wrote another, which is called every time."""
    reference_class: ClassVar[Any] = None
    """The class whose `forward` is the reference's; None where the kernel's author wrote a `reference_forward`."""

    policy: Policy | str | None = None
    """This module's own policy, or its name; None takes the program's (see `policy.py`)."""

    accuracy: Accuracy | str | None = None
    """The accuracy that this module's kernels need, or its name; None takes the program's accuracy."""

    written_for: ClassVar[Mapping[str, object]] = {}
    """The structure of the models that the kernel is for, see `structure_of`; of no structure where it is for any."""

    is_trained: ClassVar[bool] = False
    """Whether `trained_forwards` may give any."""

    wait: bool | None = None
    """Whether this module's calls wait while their kernel is built; None takes the program's setting."""

    policies: ClassVar[Sequence[str]] = tuple(policy for policy in Policy if policy is not Policy.TUNE)
    """The legal values of `policy` where no call is to search."""

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if "kernel" not in vars(cls):
            return
        reference = require_reference(cls, cls.kernel.path)
        if cls.reference_forward is TunedModule.reference_forward:
            cls.reference_class = reference
        cls._operators = Operators.define(cls)
        if cls.forward is TunedModule.forward:
            cls.forward = _copied(TunedModule.forward, cls.kernel.name)  # type: ignore[method-assign]
            cls.own_forward = staticmethod(cls.forward)
            # torch.export names inputs, and finds their dynamic shapes, by the signature.
            cls.forward.__signature__ = cls._signature()  # type: ignore[attr-defined]
        if cls.__call__ is TunedModule.__call__:
            cls.__call__ = _copied(TunedModule.__call__, cls.kernel.name)  # type: ignore[method-assign]

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Make a module that a compiled or exported program can find again, whatever its constructor does."""
        made = super().__new__(cls)
        note(made, arguments, named)
        return made

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Call the constructor of the reference's `Model`, which makes parameters, buffers and submodules."""
        # Before the reference's constructor, which may call what needs them, such as `eval()`.
        self._pinned: Plan | None = None
        self._plans: Latest[Occasion, Decided] = Latest(_MOST_PROBLEMS)
        self._choices: Latest[tuple[Problem | None, Device | None], Choice] = Latest(_MOST_PROBLEMS)
        self._trains = False
        self._known = KnownCalls()
        self._derived: DerivedTensors | None = None  # there while the module is frozen
        super().__init__(*arguments, **named)
        self._made_of = parts(self)

    def __del__(self) -> None:
        """Let go of its known calls: they hold its tensors, whose memory would wait for Python to look for cycles."""
        if (known := vars(self).get("_known")) is not None:
            known.forget_those_of(self)

    @abc.abstractmethod
    def tuned_forward(self, plan: Plan, *inputs: Any, **named: Any) -> torch.Tensor:
        """Run the model under a plan, for inputs that `problem` accepts: the reference's, by position."""

    def problem(self, *inputs: Any, **named: Any) -> Problem | None:
        """Return the problem of a call with these inputs; None where the kernel cannot serve it: see `unserved`.

        By default the sizes are those of the kernel's `axes`, and the mode is an option where the kernel has several.
        Served are dense tensors of one of the kernel's dtypes, parameters and buffers like them, the kernel's `indices`
        and plain numbers beside them, and submodules as the reference makes them. Override it to serve less or to add
        options, and `accepts_layout` to serve more.
        """
        if named:
            raise TypeError(f"problem() takes inputs by position, not {', '.join(named)}=")
        if not has_parts(self, self._made_of):
            return self.unserved("a submodule or a parameter is another than the reference makes, or hooks are inside")
        if self.written_for and (path := changed(self, self.written_for, is_structure=True)):
            return self.unserved(f"'{path}' is another than the kernel was written for")
        by_name = dict(zip(self._input_names(), inputs, strict=False))
        try:
            kernel = self.kernel
            sizes, like = sizes_of(self, by_name, kernel.axes, kernel.indices, self.accepts_layout, kernel.in_float32)
        except UnservedError as error:
            return self.unserved(str(error))
        dtype = str(like.dtype).removeprefix("torch.")
        if dtype not in self.kernel.dtypes:
            return self.unserved(f"the kernel is for {', '.join(self.kernel.dtypes)}, the inputs are {dtype}")
        return Problem(sizes, dtype, {"mode": self.mode()} if len(self.kernel.modes) > 1 else {})

    def identify(self, *inputs: Any) -> Problem | None:
        """Return the problem that a call with these inputs is, with all that identifies it; None as of `problem`."""
        problem = self.problem(*inputs)
        if not isinstance(problem, Problem):
            return problem  # whatever the author's `problem` gave: whoever asks says what is wrong with it
        return self._identified(problem, inputs, describe_reference(self, inputs))

    def _identified(self, problem: Problem, inputs: Sequence[Any], traced: ReferenceCall) -> Problem:
        return identify(problem, self, dict(zip(self._input_names(), inputs, strict=False)), self.kernel.axes, traced)

    def unserved(self, reason: str) -> Problem | None:
        """Return None, for `problem` where the kernel cannot serve a call, and keep the reason for `choices`."""
        self._known.reason = reason
        return None

    @property
    def reason(self) -> str:
        """Why the latest call of `problem` that was not served was not."""
        return self._known.reason

    def accepts_layout(self, name: str, tensor: torch.Tensor) -> bool:  # noqa: ARG002
        """Return whether the kernel reads a tensor that is not contiguous as it lies in memory; by default none.

        Args:
            name: of an input, or of a parameter or buffer as in the state dict.
        """
        return False

    @classmethod
    def make_ready(cls, plan: Plan) -> None:
        """Make now what the first forward under a plan would make, beyond its binary; nothing unless overridden.

        It runs in the background, while the reference serves, unless calls wait for builds.

        Raises:
            LaunchError: this machine cannot make it: another configuration has to serve.
        """

    def trained_forwards(self, plan: Plan) -> list[Callable[..., torch.Tensor]]:  # noqa: ARG002
        """Return forwards by operations that autograd differentiates, whose steps may be faster than the reference's
        where the plan's forward is; none unless overridden. The first is to be preferred where no duel is held.

        All that they need is made here, in a thread of its own, and kept with the plan.
        """
        return []

    def _ready_maker(self) -> Callable[[Plan], None] | None:
        """Return `make_ready`; None where this class makes nothing beyond a plan's binary."""
        plain = getattr(self.make_ready, "__func__", None) is TunedModule.make_ready.__func__  # type: ignore[attr-defined]
        return None if plain else self.make_ready

    def reference_forward(self, *inputs: Any) -> torch.Tensor:
        """Run the model by the reference's own `forward`."""
        output: torch.Tensor = super().forward(*inputs)
        return output

    def __call__(self, first: Any = _MISSING, /, *rest: Any, **named: Any) -> Any:
        """Call the module as any other; `nn.Module`'s own way to `forward` takes longer than to recognise a call."""
        if is_dynamo_compiling():
            run = self.forward if is_only_forward(self) else super().__call__
            return run(*(rest if first is _MISSING else (first, *rest)), **named)
        if named:
            return super().__call__(*(rest if first is _MISSING else (first, *rest)), **named)
        for known in self._known.latest:
            if known.by_reference is not None:
                # The reference is right in any case: asked is what decided for it, and who else has a say. Between two
                # forwards nothing of this is in the processor's caches: each call of a function in C costs up to 1 µs.
                # So PyTorch's settings, under which a kernel might be faster after all, are looked at now and then.
                one, two, three, four, five, six, seven, eight = known.hooks
                if (
                    known.same_tensors(first)
                    and known.version == version_of_attributes(known.attributes)
                    and (known.grad is None or known.grad is is_grad_enabled())
                    and known.program is policies.of_program
                    and (not policies.have_blocks or known.block is policies.of_block())
                    and not (one or two or three or four or five or six or seven or eight)
                    and type(self).forward is known.forward
                    and known.calls_left
                ):
                    known.calls_left -= 1
                    if rest:
                        return known.by_reference.forward(self, first, *rest)
                    return known.by_reference.forward(self, first)
            elif known.is_like((first, *rest)) and known.stands(self):
                return self._serve(known.served, (first, *rest))
        return super().__call__(*(rest if first is _MISSING else (first, *rest)))

    def forward(self, *inputs: Any, **named: Any) -> torch.Tensor:
        """Run the model, by its kernel wherever that can serve; the inputs are the reference's, by position or name."""
        if is_compiling():
            return traced_call(self, inputs, named)
        policy, accuracy, known = policy_for(self.policy), accuracy_for(self.accuracy), self._known
        holdings = known.of(self)
        kind = None if named else kind_of_call(inputs)
        key = None if kind is None else (policy, accuracy, hooks_of_all(), *kind)
        if key is not None and (precedent := known.look_up(key, inputs)) is not None:
            return self._serve(precedent.served, inputs)
        given, inputs = inputs, self._in_order(inputs, named)
        call, watched, traced = look_at(self, inputs), None, None
        if kind is not None:
            kind = (*kind, *(one.requires_grad for one in holdings.parameters))
            traced = holdings.traced.get(kind)
            if traced is None and may_watch(self, call):
                watched = watch_reference(self, inputs)
                traced = holdings.traced[kind] = watched[1]
        served, lasts = look(self, inputs, call, policy, accuracy, traced)
        if lasts and key is not None and inputs is given:
            known.remember(key, Precedent(self, inputs, served, holdings))
        return self._serve(served, inputs) if watched is None else watched[0]

    def _serve(self, served: Served, inputs: tuple[Any, ...]) -> torch.Tensor:
        """Return the answer to a call whose inputs stand in the reference's order."""
        if served.obstacle is not None:
            self._choices[None, None] = served.obstacle
        if served.miss is not None:
            served.miss.calls += 1
        if served.run is not None:
            return served.run(self, *inputs)
        if served.plan is None:
            return self.reference_forward(*inputs)
        return self.tuned_forward(served.plan, *inputs)

    def _in_order(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Return the inputs in the order of the reference's own signature; TypeError where they do not fit it."""
        signature = self._signature()
        if not named and len(inputs) == len(signature.parameters) - 1:
            return inputs
        bound = signature.bind(self, *inputs, **named)
        bound.apply_defaults()
        return bound.args[1:]

    @classmethod
    @cache
    def _signature(cls) -> inspect.Signature:
        """Return the signature of the reference's forward, `self` included."""
        return inspect.signature(super().forward)

    @classmethod
    @cache
    def _input_names(cls) -> tuple[str, ...]:
        return tuple(cls._signature().parameters)[1:]

    def _note_backward(self) -> None:
        """Have calls that need a gradient trained: a backward through the kernel runs the reference's forward too."""
        if not self._trains:  # to set it again would change the attributes' version, and every call be looked at
            self._trains = True

    @property
    def choices(self) -> dict[tuple[Problem | None, Device | None], Choice]:
        """The choice for each problem and device met so far, and the tier it came from.

        Under `(None, None)` stands why the reference ran in the latest call that no kernel could serve at all.
        """
        return dict(self._choices)

    def pin(self, plan: Plan | None) -> None:
        """Run this plan in every forward from now on; None goes back to choosing by problem and device.

        With None, what a frozen module has derived goes too: of many plans tried, each may have kept a whole weight.
        """
        self._pinned = plan
        self._known.latest = ()
        if plan is None and self._derived is not None:
            self._derived.clear()

    def choose(self, policy: Policy | str, accuracy: Accuracy) -> None:
        """Choose by a policy of this module's own from now on, for an accuracy, and wait for what has to be built."""
        self.policy, self.accuracy, self.wait = policy, accuracy, True

    def freeze(self) -> Self:
        """Keep what is derived from the weights (sums, folded vectors, split parts) between calls; implies `eval()`.

        Promised: the output changes with every change that PyTorch or this module can see. Before a derived tensor is
        used, each tensor it was made from must still be the same object, with the same version counter, address,
        device, dtype, shape and strides; a step of an optimiser that holds it is noticed by a hook. That covers
        optimiser steps (fused ones too), `load_state_dict`, in-place operations, replaced parameters, `.to()`, and
        BatchNorm's statistics; what is derived from a changed tensor is made again in the next call. It costs the host
        some 3 µs a call and derived tensor, and 1 µs a source tensor; a changed tensor's old memory is held until the
        next call, or `unfreeze()`.

        Not seen: writes that PyTorch does not count, such as through `.data`, `vector_to_parameters`, a NumPy array or
        another process that shares the memory, collectives, the replay of a CUDA graph, a kernel of your own. After
        such a write call `freeze()` again: it forgets all of them. A CUDA graph captured from a frozen module replays
        those of its capture. Parameters made in inference mode have no version counter: nothing is kept of them.

        `train()` unfreezes; `eval()` does not. A copied or unpickled model is frozen if its original was, and makes its
        own. The state dict is the same either way.
        """
        self.eval()
        self._derived = DerivedTensors()
        self._known.latest = ()
        return self

    def unfreeze(self) -> Self:
        """Forget what was derived from the weights, and keep nothing from now on."""
        self._derived = None
        self._known.forget()
        return self

    @property
    def is_frozen(self) -> bool:
        """Whether derived tensors are kept between calls."""
        return self._derived is not None

    def mode(self) -> Mode:
        """Return the value of the option `mode` in `problem`."""
        if self.training and Mode.TRAIN in self.kernel.modes:
            return Mode.TRAIN
        return Mode.FROZEN if self.is_frozen and Mode.FROZEN in self.kernel.modes else Mode.EVAL

    def derived(
        self, name: str, make: Callable[[], Value], sources: Sequence[Source], settings: Hashable = ()
    ) -> Value:
        """Return `make()`, called each time, or kept from one call to the next while the module is frozen.

        Args:
            name: of what is made, in this module; one name always has the same sources.
            make: makes it; reads no tensor that is not among the sources.
            sources: all tensors that it depends on; a module stands for its parameters and buffers. BatchNorm's
                statistics are only seen to move by its `num_batches_tracked`: give the module.
            settings: all else that it depends on, such as `eps` or tunables of the plan.
        """
        return make() if self._derived is None else self._derived.get(name, make, sources, settings)

    def train(self, mode: bool = True) -> Self:
        """See `nn.Module.train`. Training mode unfreezes; without it gradients are not expected until one is taken."""
        if mode:
            self.unfreeze()
        else:
            self._trains = False
        return super().train(mode)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Apply `.to()` and its like; first forget what is derived from tensors about to be replaced."""
        self._known.forget()
        if self._derived is not None:
            self._derived.clear()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy the module as by default; a parametrisation of its own parameters would copy all that it has."""
        made = memo[id(self)] = type(self).__new__(type(self))
        state = TunedModule.__getstate__ if is_parametrized(self) else type(self).__getstate__
        made.__setstate__(copy.deepcopy(state(self), memo))
        return made

    def __prepare_scriptable__(self) -> NoReturn:
        """Refuse `torch.jit.script`, which calls this and reads only functions of a fixed number of inputs."""
        raise NotImplementedError(
            f"torch.jit.script cannot read a tuned {self.kernel.name}: script its reference, or use torch.jit.trace or "
            "torch.export"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without binaries and derived tensors: a copied or pickled model gets its own."""
        return {
            **{name: value for name, value in self.__dict__.items() if name not in OWN},
            "_pinned": None,
            "_plans": Latest(_MOST_PROBLEMS),
            "_choices": Latest(_MOST_PROBLEMS),
            "_known": KnownCalls(),
            "_derived": self.is_frozen,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set the state of a copy; frozen if the original was."""
        super().__setstate__({**state, "_derived": DerivedTensors() if state["_derived"] else None})  # type: ignore[no-untyped-call]


def require_reference(model: type[TunedModule], file: Path) -> type[nn.Module]:
    """Return the class whose `forward` is the reference's operations; refuse a class that inherits none.

    Raises:
        KernelFolderError: it inherits none, or one that comes before the tuned one.
    """
    places = model.__mro__[model.__mro__.index(TunedModule) + 1 :]
    found = next((one for one in places[: places.index(nn.Module)] if "forward" in vars(one)), None)
    if found is None:
        base = next((one for one in model.__bases__ if issubclass(one, TunedModule)), TunedModule).__name__
        raise KernelFolderError(
            f"{file}: {model.__name__} has no reference: "
            f"write `class {model.__name__}({base}, Model)` with the reference's Model last"
        )
    return found


def _copied(function: Callable[..., Any], kernel: str) -> FunctionType:
    """Return the same function with code of its own.

    What torch.compile learns of shapes and numbers it keeps by a function's code: no kernel learns another's.
    """
    assert isinstance(function, FunctionType)
    code = function.__code__.replace(co_name=f"{kernel}_{function.__name__.strip('_')}")
    return FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a kernel's `accumulator_t` for tensors of this one."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def own_tensors(module: nn.Module, *names: str) -> list[Any]:
    """Return parameters or buffers of a module by their names; quicker than as attributes."""
    parameters, buffers = module._parameters, module._buffers
    return [parameters[name] if name in parameters else buffers[name] for name in names]
