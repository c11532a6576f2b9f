"""Commands that read manifests without running them: validate, schema, graph, tools."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from .options import Files, Output, OutputFormat, Recursive, Target
from .terminal import print_message, print_result

app = typer.Typer()


class DrawingFormat(StrEnum):
    """The form in which a drawing is printed."""

    mermaid = "mermaid"
    svg = "svg"


@app.command()
def validate(
    file: Files,
    recursive: Recursive = False,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse references outside of the files.")] = False,
) -> None:
    """Checks the manifests in FILE and reports every error in them."""
    from ...resources.problems import ManifestError
    from .targets import load_manifests

    loaded = load_manifests(file, recursive=recursive)
    outside = loaded.unresolved()
    if strict and outside:
        raise ManifestError(outside)
    for problem in outside:
        print_message(f"warning: {problem}")
    for problem in (*loaded.default_members(), *loaded.unused_roles()):
        print_message(f"note: {problem}")
    count = len(loaded.catalog.manifests)
    print("1 manifest is valid" if count == 1 else f"{count} manifests are valid")


@app.command()
def schema() -> None:
    """Prints a JSON Schema of all manifests, for completion and checks in an editor."""
    from ...resources.schema import manifest_schema

    print(json.dumps(manifest_schema(), indent=2))


@app.command()
def graph(
    *,
    target: Target = None,
    file: Files,
    recursive: Recursive = False,
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", help="Draw only this namespace.")] = None,
    output: Annotated[
        DrawingFormat, typer.Option("-o", "--output", help="The form of the drawing on stdout.")
    ] = DrawingFormat.mermaid,
) -> None:
    """Draws the queries in FILE with their targets, or the teams if there is no query, or the resource named."""
    from ..diagram.build import build_diagram
    from ..diagram.mermaid import mermaid
    from ..diagram.svg import svg
    from .targets import load_manifests, resources_to_draw

    loaded = load_manifests(file, recursive=recursive)
    page = build_diagram(loaded.catalog, resources_to_draw(loaded, target, namespace), namespace or "default")
    print_result(svg(page) if output is DrawingFormat.svg else mermaid(page))


@app.command()
def tools(
    *,
    agent: Annotated[str | None, typer.Argument(metavar="[AGENT]", help="An agent's name.")] = None,
    file: Files,
    recursive: Recursive = False,
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", help="Only agents of this namespace.")] = None,
    output: Output = OutputFormat.text,
) -> None:
    """Shows the tools that the models of agents are told of; asks the MCP servers for theirs."""
    import asyncio

    from ..operations.agent_tools import tool_list, tools_of
    from .formats import dump
    from .targets import choose_agents, load_manifests

    loaded = load_manifests(file, recursive=recursive)
    found = asyncio.run(tools_of(loaded, choose_agents(loaded, agent, namespace)))
    print_result(tool_list(found) if output is OutputFormat.text else dump([*found], output))
