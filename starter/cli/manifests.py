"""Commands that read manifests without running them: validate, schema, graph, tools."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from .options import Files, Output, OutputFormat, Recursive, Target
from .terminal import dump, print_message, print_result

app = typer.Typer()


class DrawingFormat(StrEnum):
    """The output formats of drawings."""

    mermaid = "mermaid"
    svg = "svg"


@app.command()
def validate(
    file: Files,
    recursive: Recursive = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Reject references to manifests and parameters that are not in the files.")
    ] = False,
) -> None:
    """Check the manifests in FILE and report all errors."""
    from ...resources.problems import ManifestError
    from .targets import load_manifests

    loaded = load_manifests(file, recursive=recursive)
    unsupported = loaded.unsupported()
    outside = [*loaded.unresolved(), *loaded.unknown_parameters()]
    if unsupported or (strict and outside):
        raise ManifestError((*unsupported, *(outside if strict else ())))
    for problem in outside:
        print_message(f"warning: {problem}")
    for problem in (*loaded.services(), *loaded.default_members(), *loaded.unused_roles()):
        print_message(f"note: {problem}")
    count = len(loaded.catalog.manifests)
    print("1 manifest is valid" if count == 1 else f"{count} manifests are valid")


@app.command()
def schema(
    *,
    protocol: Annotated[
        bool,
        typer.Option("--protocol", help="Print the schema of what clients send to runs and receive from them."),
    ] = False,
    scripts: Annotated[
        bool, typer.Option("--scripts", help="Print the schema of scripts for the scripted model.")
    ] = False,
) -> None:
    """Print a JSON Schema of all manifests, for completion and validation in an editor."""
    if protocol:
        from ...contracts.protocol import protocol_schema

        printed = protocol_schema()
    elif scripts:
        from ..scripted_model import Script

        printed = Script.model_json_schema()
    else:
        from ...resources.schema import manifest_schema

        printed = manifest_schema()
    print(json.dumps(printed, indent=2))


@app.command()
def graph(
    *,
    target: Target = None,
    file: Files,
    recursive: Recursive = False,
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", help="Draw only this namespace.")] = None,
    output: Annotated[DrawingFormat, typer.Option("-o", "--output", help="The output format.")] = DrawingFormat.mermaid,
) -> None:
    """Draw the queries in FILE, or its teams if it has no query, or a single resource."""
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
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", help="Only agents in this namespace.")] = None,
    output: Output = OutputFormat.text,
) -> None:
    """Show the tools of agents as models see them, including those of MCP servers."""
    import asyncio

    from ..operations.agent_tools import tool_list, tools_of
    from .targets import choose_agents, load_manifests

    loaded = load_manifests(file, recursive=recursive)
    agents = asyncio.run(tools_of(loaded, choose_agents(loaded, agent, namespace)))
    print_result(tool_list(agents) if output is OutputFormat.text else dump([*agents], output))
