"""Options and arguments that several commands have in common."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class OutputFormat(StrEnum):
    """The form in which a result is printed."""

    text = "text"
    json = "json"
    yaml = "yaml"


class QueryFormat(StrEnum):
    """The form in which a query is printed."""

    text = "text"
    json = "json"
    yaml = "yaml"
    ark = "ark"
    ark_json = "ark-json"


Files = Annotated[
    list[Path], typer.Option("-f", "--file", help="A file or folder of manifests, or - for stdin; may be repeated.")
]
RunFiles = Annotated[
    list[Path] | None,
    typer.Option("-f", "--file", help="As for other commands; without it, workers must know what is named."),
]
Recursive = Annotated[bool, typer.Option("-R", "--recursive", help="Also the folders in a folder.")]
Target = Annotated[str | None, typer.Argument(metavar="[KIND/NAME]", help="A resource, such as team/NAME.")]
Namespace = Annotated[str, typer.Option("-n", "--namespace", help="The namespace of the Query.")]
RunName = Annotated[str, typer.Argument(metavar="NAME|ID", help="A run's id, or a Query's name: its newest run.")]
Output = Annotated[OutputFormat, typer.Option("-o", "--output", help="The form of the result on stdout.")]
QueryOutput = Annotated[
    QueryFormat,
    typer.Option("-o", "--output", help="The form of the result on stdout; ark is YAML with the status of ARK."),
]
