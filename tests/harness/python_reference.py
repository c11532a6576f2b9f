"""Writes docs/python-reference.md from the signatures and docstrings of ``import baton``."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Unpack, get_args, get_origin

from pydantic import BaseModel

import baton
from baton.starter.api import client, resources, teams
from baton.starter.history.events import BaseEvent
from tests.harness.processes import ROOT

PAGE = ROOT / "docs" / "python-reference.md"

HEAD = """# Python reference

Everything that `import baton` offers, with its arguments. `make reference` writes this page from the code.
[The tutorial](python.md) explains how it is used, and [events](events.md) lists the classes of events. `None` as a
default omits the field of the manifest: [the reference](reference.md) explains all fields. `T` is the type of `value`.
"""

SECTIONS: dict[str, tuple[str, ...]] = {
    "Runs": (
        "run",
        "run_sync",
        "start",
        "attach",
        "retry",
        "contributions",
        "evaluate",
        "compare",
        "connect",
        "Connection",
        "Handle",
        "Result",
    ),
    "Agents and teams": ("Agent", "Team", "Member", "round_robin", "debate", "roster_agent", "referee", "synthesizer"),
    "Models, tools and servers": (
        *("Model", "Secret", "Skill", "tool", "function", "MCPServer", "A2AServer", "ExecutionEngine", "Manifest"),
    ),
    "Files": ("load", "Manifests"),
    "Queries and schedules": ("Query", "Schedule", "apply_schedule", "find_schedule", "ScheduleHandle"),
}
"""The names by section. Errors, and shapes that a program receives, follow by themselves."""

ALIASES = {
    **{
        getattr(module, name): name
        for module, names in (
            (resources, ("ToolInput", "SchemaInput", "ValueInput")),
            (teams, ("MemberInput", "RoleInput", "TextOrFunction")),
            (client, ("RunInput",)),
        )
        for name in names
    },
}
"""Unions with a name, which signatures show instead of their parts."""

INPUTS = """## Inputs

- `ToolInput`: the name of a built-in tool, a function, an activity, an `MCPServer`, a `Manifest` of kind Tool, or an
  entry of `tools` as in a manifest.
- `MemberInput`: an agent, a team, a function, a `Member`, a name, or an entry of `members` as in a manifest. A name
  such as `"team/NAME"` is that of a manifest that workers know.
- `RoleInput`: `True` for the default agent, `False` for none, an agent, a team, a function, or a name.
- `SchemaInput`: a JSON Schema, or a pydantic model.
- `ValueInput`: a text, `Secret.env("KEY")`, or a value source as in a manifest.
- `TextOrFunction`: a text, a function, or `{"function": f, "parameters": {…}}`.
- `RunInput`: a text, or a mapping such as `{"goal": "Review draft X"}`.
"""


def shown(annotation: object) -> str:
    """An annotation as programs write it."""
    if annotation is inspect.Parameter.empty:
        return ""
    text = _with_aliases(annotation)
    text = re.sub(
        r"Annotated\[RunStartedEvent .*?discriminator='type'\)\]", "Event", re.sub(r"baton[\w.]*\.", "", text)
    )
    text = re.sub(r"Annotated\[(\w+), \w+\(func=<function \w+ at 0x\w+>\)\]", r"\1", text)
    text = re.sub(r"[~+](\w+)", r"\1", text)
    text = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text)
    text = re.sub(r"\b(\w+)Definition\b", r"\1", text)
    text = re.sub(r"\b(?:Value_co|Answer_co|TeamValue_co|OutputModel|Value|Resource\[Value\])\b", "T", text)
    text = (
        text.replace("EnvironmentSecret", "Secret")
        .replace("Resource[object]", "Manifest")
        .replace("Resource[", "Manifest[")
    )
    text = re.sub(r"\bResource\b", "Manifest", text)
    text = re.sub(r"Union\[(.*), NoneType\]", lambda union: f"{union[1].replace(', ', ' | ')} | None", text)
    return re.sub(r"Optional\[(.*)\]$", r"\1 | None", text)


def _with_aliases(annotation: object) -> str:
    text = inspect.formatannotation(annotation)
    names = {inspect.formatannotation(alias): name for alias, name in ALIASES.items()}
    for alias in sorted(names, key=len, reverse=True):
        text = text.replace(alias, names[alias])
    return text


def signature(name: str, callable_: Any, *, bound: bool = False, one_line: bool = False) -> str:
    """A call with one line for each argument, or on one line if it fits, or is to."""
    given = inspect.signature(callable_)
    parts = []
    keyword_only = False
    for parameter in [*given.parameters.values()][1 if bound else 0 :]:
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            parts.append("*")
        star = (
            "*"
            if parameter.kind is parameter.VAR_POSITIONAL
            else "**"
            if parameter.kind is parameter.VAR_KEYWORD
            else ""
        )
        keyword_only = keyword_only or parameter.kind is parameter.VAR_POSITIONAL
        text = f"{star}{parameter.name}: {shown(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {parameter.default!r}"
        parts.append(text)
    returned = shown(given.return_annotation)
    end = f" -> {returned}" if returned and returned != "None" and not inspect.isclass(callable_) else ""
    prefix = "await " if inspect.iscoroutinefunction(callable_) else ""
    if "output_type" in given.parameters:  # overloads say the same of both ways to know the type
        parts = [
            part.replace("Union[Manifest[Any], str]", "Manifest[T] | str").replace("[Any]", "[T]") for part in parts
        ]
        end = end.replace("[Any]", "[T]")
    line = f"{prefix}{name}({', '.join(parts)}){end}"
    if one_line or len(line) <= 110:
        return line
    return f"{prefix}{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){end}"


def documented(target: object) -> str:
    """A docstring as Markdown."""
    text = inspect.cleandoc(getattr(target, "__doc__", None) or "")
    text = re.sub(r"``(.+?)``", r"`\1`", text)
    text = re.sub(
        r"^Raises:\n(?:    .*\n?)+", lambda raised: textwrap.dedent(raised[0].partition("\n")[2]), text, flags=re.M
    )
    return re.sub(r"\s*\((?:ARK|round-robin pattern): [^)]*\)", "", text)


def options_of(callable_: object) -> str:
    """The explanation of the options that a signature spells out."""
    for annotation in inspect.get_annotations(callable_).values():  # type: ignore[arg-type]  # any function
        origin: object = get_origin(annotation)
        if origin is Unpack:
            text = documented(get_args(annotation)[0])
            return re.sub(r"^(?:Further fields|Options) of .*?(?:omits a field|\.)\.?\n*", "", text)
    return ""


def entry(name: str) -> Iterator[str]:
    """What the page has on one name."""
    target = getattr(baton, name)
    yield f"### `{name}`\n"
    if not inspect.isclass(target):
        yield f"```python\n{signature(f'baton.{name}', target)}\n```\n\n{documented(target)}\n\n{options_of(target)}\n"
    elif name == "Secret":
        yield f"```python\n{signature('baton.Secret.env', baton.Secret.env)}\n```\n\n{documented(target)}\n"
    elif issubclass(target, BaseModel):
        yield f"{documented(target)}\n"
        for field, info in target.model_fields.items():
            yield f"- `{field}: {shown(info.annotation)}`"
        yield ""
    else:
        if name not in GIVEN and not issubclass(target, Exception):
            yield f"```python\n{signature(f'baton.{name}', target.__init__, bound=True)}\n```\n"
        yield f"{documented(target)}\n\n{options_of(target.__init__)}\n"
        yield from methods(name, target)


def methods(name: str, target: type) -> Iterator[str]:
    """The methods and properties of a class that programs use."""
    if name not in (*GIVEN, "Connection", "MCPServer", "RunFailed"):
        return
    for method, value in vars(target).items():
        if method.startswith("_"):
            continue
        if isinstance(value, property):
            returned = shown(inspect.signature(value.fget).return_annotation)  # type: ignore[arg-type]  # it has one
            yield f"- `{method}: {returned}`: {' '.join(documented(value).split())}"
        elif inspect.isfunction(value):
            yield f"- `{signature(method, value, bound=True, one_line=True)}`: {' '.join(documented(value).split())}"
    yield ""


GIVEN = ("Handle", "Result", "ScheduleHandle", "Manifests")
"""Classes whose instances programs receive."""


def generated() -> str:
    """The page."""
    names = {name for section in SECTIONS.values() for name in section}
    rest = [name for name in baton.__all__ if name not in names and name != "Event"]
    classes = {name: getattr(baton, name) for name in rest}
    events = [name for name, value in classes.items() if inspect.isclass(value) and issubclass(value, BaseEvent)]
    errors = [name for name, value in classes.items() if inspect.isclass(value) and issubclass(value, Exception)]
    shapes = [name for name in rest if name not in (*events, *errors)]
    sections = {**SECTIONS, "Shapes": tuple(shapes), "Errors": tuple(errors)}
    lines = [HEAD]
    for title, members in sections.items():
        lines.append(f"## {title}\n")
        for name in members:
            lines.extend(entry(name))
    page = "\n".join([*lines, INPUTS])
    return re.sub(r"\n{3,}", "\n\n", page)


if __name__ == "__main__":
    PAGE.write_text(generated())
