"""The software that decides how fast a kernel and its reference are: a result is as good as these are the same."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Versions:
    """Versions that a result was obtained with; None where they were not recorded, or where there is none.

    Attributes:
        cuda: that torch was built for.
        driver: NVIDIA's.
    """

    torch: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    driver: str | None = None

    def changes(self, here: Versions) -> str:
        """Return the versions that differ here, in words; empty where none does, as far as both are known."""
        pairs = ((one.name, getattr(self, one.name), getattr(here, one.name)) for one in fields(self))
        return ", ".join(f"{name} {then}, now {now}" for name, then, now in pairs if then and now and then != now)


UNKNOWN = Versions()
"""The versions when nothing is known, so that nothing has changed."""
