"""The report on a new kernel's folder, line by line."""

from __future__ import annotations

from collections.abc import Iterator

from tunebench.studies.writing.new.new_kernel import NewKernel


def lines_about(made: NewKernel) -> Iterator[str]:
    """Return what was written, how it was checked, what was not translated, and the next command."""
    folder = made.folder
    if not made.block:
        yield f"written: {folder / 'reference.py'}; {folder / 'model.py'} and {folder.name}.cu to be written by hand"
        yield f"no kernel: {made.reason}"
        yield f"next: write the kernel (docs/writing_kernels.md), then tunebench tune {folder}; or tunebench optimize"
        yield f"{folder / 'reference.py'}, which finds the parts that have kernels and leaves the rest to Inductor"
        return
    yield f"written: {folder / 'reference.py'}, {folder / 'model.py'} (blocks.{made.block})"
    checked = made.checked
    if checked.missing:
        yield f"not compared with the reference: {checked.missing}"
    else:
        at = ", ".join(f"{name}={size:g}" for name, size in (checked.sizes or {}).items())
        yield f"agrees with the reference in eval and train mode on the CPU, at {at or 'its own sizes'}"
    if made.hidden:
        yield f"no block: {made.hidden}"
    yield f"next: tunebench tune {folder}"
