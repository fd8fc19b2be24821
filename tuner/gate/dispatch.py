"""A mode sees each operation of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class OperationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each operation that goes through torch's dispatcher; it takes some 10 µs longer."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operation imports torch's compiler, which takes seconds

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # what torch.compile has made runs as it does without

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation."""
        return self.run(func, args, kwargs or {})

    def run(self, operation: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Run an operation; what it returns is what the model gets."""
        return operation(*arguments, **named)
