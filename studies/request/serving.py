"""The options of the judge that is offered to others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pydantic
from pydantic import Field

from tunebench.studies.request.options import OF_DATACLASS, InABox, Text
from tunebench.studies.request.text import LARGEST, LONGEST, read_path
from tunebench.tuner.gate.boundary.box import Box


@pydantic.dataclasses.dataclass(frozen=True, config=OF_DATACLASS)
class ServeRequest:
    """The options of `serve`."""

    host: Annotated[str, Text(metavar="ADDRESS")] = "127.0.0.1"
    """The address to listen on; 0.0.0.0 for every one of this machine. Default: 127.0.0.1, for this machine alone."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8093
    """The port; 0 for any that is free. Default: 8093."""
    key: Annotated[str | Path | None, Text(metavar="FILE", read=read_path)] = None
    """The file of the key that signs verdicts, made where it is missing. Default: one in the user's data folder."""
    jobs: Annotated[int, Field(ge=1, le=256)] = 1
    """The number of files that are judged at a time."""
    box: InABox = Box.REQUIRE
    seconds: Annotated[float, Field(ge=1, le=LONGEST)] = 600.0
    """Seconds; a check that takes longer is refused, whatever its request says."""
    rate: Annotated[float, Field(gt=0, le=LARGEST)] = 30.0
    """Requests a minute of each client, known by its address."""
    longest: Annotated[int, Field(ge=1, le=1 << 30)] = 1 << 20
    """Bytes of a request's body."""
