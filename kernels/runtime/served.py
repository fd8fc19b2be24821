"""Cache of what served a call, and a quick test whether another call is like it.

What a call has to be for a kernel to serve it is a matter of its inputs, of the module with all that it holds, and of
what PyTorch does just then. Looking at all of it takes as long as a small model's forward. So what was found is kept,
and the next call is only checked for a difference: PyTorch's own guards compare all tensors in one go (type,
shape, strides, dtype, device, and what happens to operations on them), and the versions of the modules' dictionaries
tell whether a parameter, a buffer, a submodule, a hook or an attribute was replaced.

The reference's operations are right for any call, so that less is checked where they run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import is_grad_enabled, nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback as compiler_at_work
from torch.autograd import forward_ad

from tunebench.kernels.runtime import policy as policies
from tunebench.kernels.runtime.autocast import autocast_type
from tunebench.kernels.runtime.guards import same_tensors, version_of_attributes
from tunebench.kernels.runtime.latest import Latest
from tunebench.kernels.runtime.misses import Miss
from tunebench.kernels.runtime.ordinary import HOOKS_OF_ALL, intercepts, saves_differently
from tunebench.kernels.runtime.reference_call import ReferenceCall
from tunebench.kernels.runtime.selection import Choice
from tunebench.kernels.runtime.snapshot import Snapshot
from tunebench.tuner.kernel import Plan
from tunebench.tuner.settings import Setting, watch

_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")

_CALLS_BY_REFERENCE = 1024
"""Number of calls that the reference serves before PyTorch's settings are looked at again."""
_MOST_KEYS = 1024
_MOST_OF_A_KEY = 4
_MOST_LATEST = 4


@dataclass(frozen=True, slots=True)
class Served:
    """The plan or the reference that served a call.

    Attributes:
        plan: that served it; None for the reference's operations.
        run: answers, given the module and the inputs, where more than the plan's forward, or the reference's, is
            needed: a gradient, or autocast's types.
        needs_gradient: whether the result belongs to an autograd graph.
        autocast: the type that autocast casts to; None where it is off.
        obstacle: why no kernel could serve it, where none could.
        miss: counts the calls that were served without evidence, where counting is on.
        settings: those of PyTorch's that this depends on.
    """

    plan: Plan | None
    run: Callable[..., torch.Tensor] | None = None
    needs_gradient: bool = False
    autocast: torch.dtype | None = None
    obstacle: Choice | None = None
    miss: Miss | None = None
    settings: tuple[Setting, ...] = ()


class Holdings(Snapshot):
    """A module's snapshot, with what was found out while it holds.

    Attributes:
        precedents: calls that were served meanwhile, by their kind and the rules for them.
        traced: the reference's work in the calls that it served meanwhile, by `kind_of_call` and what needs a gradient.
    """

    __slots__ = ("precedents", "traced")

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.precedents: dict[tuple[Hashable, ...], tuple[Precedent, ...]] = {}
        self.traced: Latest[tuple[Hashable, ...], ReferenceCall] = Latest(_MOST_KEYS)


class Precedent:
    """A call that was served, and how to tell that another call of the module is like it.

    Attributes:
        served: what serves them.
        holdings: of the module.
        same_tensors: whether tensors are like those of the call: its inputs and, where a kernel serves, the module's.
        attributes, version: of the module: where the version is another one, anything of it may have changed.
        grad: whether gradients were enabled; None where the reference serves and nothing has one to take.
        block, program: the rules around the call, and the program's; the module's own are attributes.
        watch: reads those of PyTorch's settings that this depends on, of which `settings` are the values then.
        hooks: of the module, and of all modules: where there is any, a call is more than its `forward`.
        forward: the module's, as its class had it.
        by_reference: the class whose `forward` is all there is to do, on a first input that is the only tensor; None in
            all other cases.
        calls_left: number of calls that it serves before one is looked up again.
    """

    __slots__ = (
        "_number",
        "_pick",
        "_plain",
        "_tensors",
        "attributes",
        "block",
        "by_reference",
        "calls_left",
        "forward",
        "grad",
        "holdings",
        "hooks",
        "program",
        "same_tensors",
        "served",
        "settings",
        "version",
        "watch",
    )

    def __init__(self, module: Any, inputs: tuple[Any, ...], served: Served, holdings: Holdings) -> None:
        self.served, self.holdings = served, holdings
        self.attributes, self.version = module.__dict__, version_of_attributes(module.__dict__)
        self.forward = module.own_forward
        self.block, self.program = policies.of_block(), policies.of_program
        self.grad: bool | None = is_grad_enabled()
        self.hooks = [*(module.__dict__[name] for name in _HOOKS), *HOOKS_OF_ALL]
        self._number, self._pick = len(inputs), _picker(inputs)
        tensors = self._pick(inputs)
        self.watch = watch(served.settings, tensors[0].device.type if tensors else "cpu")
        self.settings = self.watch()
        self._plain = [(at, type(one), one) for at, one in enumerate(inputs) if not isinstance(one, torch.Tensor)]
        self._tensors = () if served.plan is None else holdings.tensors
        self.same_tensors = same_tensors(*tensors, *self._tensors)
        alone = len(tensors) == 1 and tensors[0] is inputs[0]
        alone = alone and served.run is None
        is_all = served.plan is None and served.obstacle is None and served.miss is None and served.autocast is None
        self.by_reference = module.reference_class if alone and is_all else None
        self.calls_left = _CALLS_BY_REFERENCE
        if self.by_reference is not None and not (holdings.parameters or tensors[0].requires_grad):
            self.grad = None

    def is_like(self, inputs: tuple[Any, ...]) -> bool:
        """Return whether a call with these inputs is served in the same way, by a module that is as it was."""
        return (
            self._number == len(inputs)
            and self.same_tensors(*self._pick(inputs), *self._tensors)
            and self.settings == self.watch()
            and (self.served.autocast is None or self.served.autocast == autocast_type(self._pick(inputs)[0].device))
            and (self.served.plan is None or self._lets_a_kernel_run(inputs))
        )

    def _lets_a_kernel_run(self, inputs: tuple[Any, ...]) -> bool:
        """Return whether all else that could forbid a kernel is as it was; tensors show most modes of PyTorch."""
        for at, kind, value in self._plain:
            # Of a floating-point number only the type matters.
            if type(inputs[at]) is not kind or (kind is not float and inputs[at] != value):
                return False
        return (
            forward_ad._current_level < 0
            and (torch._C._len_torch_function_stack() == 0 or not intercepts())
            and (not self.served.needs_gradient or not saves_differently())
        )

    def stands(self, module: Any) -> bool:
        """Return whether the module is as it was, and nobody else takes part in its calls."""
        return (
            module.__dict__ is self.attributes
            and self.version == version_of_attributes(self.attributes)
            and self.grad is is_grad_enabled()
            and self.program is policies.of_program
            and (not policies.have_blocks or self.block is policies.of_block())
            and not any(self.hooks)
            and type(module).forward is self.forward
            and compiler_at_work() is None
            and self.holdings.is_of(module)
        )


def _picker(inputs: tuple[Any, ...]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return a function that picks the tensors among inputs."""
    places = [at for at, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
    if len(places) == 1:
        return itemgetter(slice(places[0], places[0] + 1))
    return itemgetter(*places) if places else itemgetter(slice(0))


class KnownCalls:
    """The holdings of a module as they are now, with what served its calls.

    Attributes:
        latest: precedents, the latest first.
        reason: why the latest call that the module's `problem` refused was refused.
    """

    def __init__(self) -> None:
        self.latest: tuple[Precedent, ...] = ()
        self.reason = "its `problem` gives no reason"
        self._holdings: Holdings | None = None

    def look_up(self, key: tuple[Hashable, ...], inputs: tuple[Any, ...]) -> Precedent | None:
        """Return the precedent of a call, among all of the present holdings; None where it has to be looked at."""
        for precedent in self._holdings.precedents.get(key, ()) if self._holdings else ():
            if precedent.is_like(inputs):
                # Rules that are others come to the same for this module, or the key would be another.
                precedent.block, precedent.program = policies.of_block(), policies.of_program
                precedent.calls_left = _CALLS_BY_REFERENCE
                self._note(precedent)
                return precedent
        return None

    def remember(self, key: tuple[Hashable, ...], precedent: Precedent) -> None:
        """Serve calls like this one the same way; of those with one key the latest are kept."""
        precedents = precedent.holdings.precedents
        if len(precedents) >= _MOST_KEYS:
            precedents.clear()
        precedents[key] = (precedent, *precedents.get(key, ())[: _MOST_OF_A_KEY - 1])
        self._note(precedent)

    def _note(self, precedent: Precedent) -> None:
        self.latest = (precedent, *[one for one in self.latest if one is not precedent][: _MOST_LATEST - 1])

    def of(self, module: nn.Module) -> Holdings:
        """Return the module's holdings; where anything was replaced, new ones that know of no call."""
        found = self._holdings
        if found is None or not found.is_of(module):
            self.forget()  # it would keep what was replaced
            found = self._holdings = Holdings(module)
        return found

    def forget_those_of(self, module: nn.Module) -> None:
        """Let go of all that a module held, whose copies these may be known to as well."""
        if self._holdings is not None and self._holdings.belongs_to(module):
            self.forget()

    def forget(self) -> None:
        """Let go of all that the module held."""
        if self._holdings is not None:
            self._holdings.precedents.clear()  # each knows these holdings
        self._holdings = None
        self.latest = ()


def kind_of_call(inputs: tuple[Any, ...]) -> tuple[Hashable, ...] | None:
    """Return what calls have in common of which a module that stays as it is makes the same.

    Of a floating-point number it is the type alone: what serves a call does not depend on the value. None where an
    input is neither a tensor nor a plain value.
    """
    kind: list[Hashable] = [is_grad_enabled(), torch.is_inference_mode_enabled(), torch._C._is_any_autocast_enabled()]
    for value in inputs:
        if isinstance(value, torch.Tensor):
            kind += (value.shape, value.dtype, value.device, value.requires_grad)
        elif type(value) is float:
            kind.append(float)
        elif value is None or type(value) in (bool, int, str):
            kind.append((type(value), value))
        else:
            return None
    return tuple(kind)
