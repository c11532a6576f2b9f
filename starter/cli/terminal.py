"""How does a command speak, and reach a server that runs already?"""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from temporalio.client import Client
from temporalio.runtime import Runtime, TelemetryConfig

from ..server.connection import Place, temporal
from ..text.escape import escape_control_characters

T = TypeVar("T")


class Form(StrEnum):
    """How a result is printed."""

    text = "text"
    json = "json"
    yaml = "yaml"


class Drawn(StrEnum):
    """How a drawing is printed."""

    mermaid = "mermaid"
    svg = "svg"


Output = Annotated[Form, typer.Option("-o", "--output", help="The form of the result on stdout.")]

err = Console(stderr=True, highlight=False, force_interactive=None if sys.stderr.isatty() else False)
"""Where everything is said that is not a result."""


def say(text: str) -> None:
    """Says something, as it is, on stderr."""
    err.print(text, soft_wrap=True, markup=False)


def show(result: str) -> None:
    """Prints a result on stdout, as it is, but on a terminal without what would command it."""
    print(escape_control_characters(result) if sys.stdout.isatty() else result, flush=True)


def keep_stdout_clean() -> None:
    """Lets the core of Temporal's SDK be silent: it logs to stdout, where results stand, and errors are told anyway."""
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=None)))


def at_temporal(work: Callable[[Client, Place], Coroutine[Any, Any, T]]) -> T:
    """Does what needs a server; raises UnreachableError if none runs."""

    async def connected(place: Place) -> T:
        return await work(await place.connect(), place)

    with temporal(say, start=False) as place:
        return asyncio.run(connected(place))
