"""`stop`."""

from __future__ import annotations


def stop() -> None:
    """End the helpers that TUNEBENCH_KEEP_WARM has started, each after the commands that it runs."""
    from tunebench.studies.faces.helper import stop as stop_helpers

    count = stop_helpers()
    print(f"{count} ended" if count else "there is none")
