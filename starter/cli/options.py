"""Options and arguments that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from . import completion

if TYPE_CHECKING:
    from pydantic import JsonValue


class OutputFormat(StrEnum):
    """The output formats of results."""

    text = "text"
    json = "json"
    yaml = "yaml"


class QueryFormat(StrEnum):
    """The output formats of queries."""

    text = "text"
    json = "json"
    yaml = "yaml"
    ark = "ark"
    ark_json = "ark-json"


Files = Annotated[
    list[Path], typer.Option("-f", "--file", help="A file or folder of manifests, or - for stdin; repeatable.")
]
RunFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "-f",
        "--file",
        help="A file or folder of manifests, or - for stdin; repeatable. Without it, workers must have them.",
    ),
]
Recursive = Annotated[bool, typer.Option("-R", "--recursive", help="Read folders recursively.")]
Target = Annotated[
    str | None,
    typer.Argument(
        metavar="[KIND/NAME]", help="A resource, such as team/NAME.", autocompletion=completion.complete_targets
    ),
]
Namespace = Annotated[str, typer.Option("-n", "--namespace", help="The namespace of the Query.")]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="NAME|ID",
        help="A run's id, or the name of a Query, for its newest run.",
        autocompletion=completion.complete_runs,
    ),
]
RunNames = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME|ID",
        help="Ids of runs, or names of Queries, for their newest runs.",
        autocompletion=completion.complete_runs,
    ),
]
Gateway = Annotated[
    str | None,
    typer.Option(
        "--gateway",
        metavar="URL",
        help="Use this gateway with the key in BATON_GATEWAY_KEY, instead of the database and Temporal. "
        "With that key, BATON_GATEWAY_URL is the default.",
    ),
]
Output = Annotated[OutputFormat, typer.Option("-o", "--output", help="The output format.")]
QueryOutput = Annotated[
    QueryFormat,
    typer.Option("-o", "--output", help="The output format; ark is YAML with ARK's status."),
]


def read_value(text: str, option: str) -> "JsonValue":
    """The value of an ``option``: JSON, or else the text itself. Raises UsageError for a number that is too large."""
    from ...contracts.text import NumberTooLarge, parse_json

    try:
        return parse_json(text, constants=False)
    except NumberTooLarge as error:
        raise UsageError(f"{option}: {error}") from None
    except ValueError:
        return text
