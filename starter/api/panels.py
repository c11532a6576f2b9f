"""Panels and debates in Python: ``baton.round_robin``, ``baton.debate``, and their default agents."""

from collections.abc import Sequence
from typing import Unpack

from ...conversation.messages.panel import RefereeOutput
from ...resources.default_prompts import default_prompt
from ...resources.panel import PROMPT_NAMES
from ...resources.strategies import default_rounds
from ...resources.template import fill
from .arguments import check_text
from .manifest import reject_unknown
from .resources import AgentDefinition, ModelDefinition, SchemaInput, ToolInput
from .teams import MemberInput, TeamDefinition, TeamOptions


def round_robin(name: str, roster: Sequence[MemberInput], **options: Unpack[TeamOptions]) -> TeamDefinition:
    """A panel: its members speak in turn, round by round, on the goal that is its input (round-robin pattern: config).

    By default there are at most 5 rounds, no referee, and a default synthesizer. The result is the synthesizer's text,
    or with ``synthesizer=False`` a ``PanelShape``.

    Raises:
        ManifestError: the roster is empty or has a name twice, ``max_rounds`` is not a whole number above 0, there is
            an ``output_schema`` without a synthesizer, or the manifest has another error.
        TypeError: an option is unknown.
    """
    reject_unknown(TeamOptions, options, "round_robin")
    if options.get("max_rounds") is None:
        options["max_rounds"] = default_rounds("round-robin")
    return TeamDefinition(name, strategy="round-robin", members=roster, **options)


def debate(name: str, debaters: Sequence[MemberInput], **options: Unpack[TeamOptions]) -> TeamDefinition:
    """A debate: each debater argues for its ``stance``, and a judge decides on the question that is its input.

    By default there are at most 2 rounds, no moderator, and a default judge and synthesizer. The result is the
    synthesizer's text, or with ``synthesizer=False`` a ``DebateShape``. Raises the errors of ``round_robin``.
    """
    reject_unknown(TeamOptions, options, "debate")
    return TeamDefinition(name, strategy="debate", members=debaters, **options)


def roster_agent(
    name: str,
    role: str,
    *,
    team: str,
    model: str | ModelDefinition | None = None,
    tools: Sequence[ToolInput] = (),
    more: str = "",
) -> AgentDefinition:
    """The default member of the panel ``team`` as an agent, to change its model or tools, or to add to its prompt."""
    prompt = _prompt("member", more, Name=name, Role=role, Team=team)
    return AgentDefinition(name, prompt=prompt, model=model, tools=tools)


def referee(
    name: str = "referee",
    *,
    team: str,
    model: str | ModelDefinition | None = None,
    tools: Sequence[ToolInput] = (),
    more: str = "",
) -> AgentDefinition:
    """The default referee of the panel ``team`` as an agent; it answers with ``{"critique": …}``."""
    return AgentDefinition(
        name, prompt=_prompt("referee", more, Team=team), model=model, tools=tools, output_schema=RefereeOutput
    )


def synthesizer(
    name: str = "synthesizer",
    *,
    team: str,
    model: str | ModelDefinition | None = None,
    tools: Sequence[ToolInput] = (),
    more: str = "",
    output_schema: SchemaInput | None = None,
) -> AgentDefinition:
    """The default synthesizer of the panel ``team`` as an agent; its input is the panel's ``PanelShape`` as JSON."""
    prompt = _prompt("synthesizer", more, Team=team)
    return AgentDefinition(name, prompt=prompt, model=model, tools=tools, output_schema=output_schema)


def _prompt(part: str, more: str, **known: str) -> str:
    """A default prompt with its constant values; the values of a round are empty. ``more`` is added below."""
    for name, value in {**known, "more": more}.items():
        check_text(value, name.lower())
    empty = dict.fromkeys(PROMPT_NAMES, "")
    text = fill(default_prompt("round-robin", part), {**empty, **known}.__getitem__)
    return f"{text}\n\n{more}" if more else text
