"""How does a program write a panel or a debate? With the seed's words: a roster, rounds, and who has which part."""

from collections.abc import Sequence
from typing import Unpack

from ...conversation.messages.panel import RefereeOutput
from ...resources.default_prompts import default_prompt
from ...resources.panel import PROMPT_NAMES
from ...resources.strategies import default_rounds
from ...resources.template import fill
from .manifest import known
from .resources import Agent, Model, Schema, Tool
from .teams import Seat, Team, TeamOptions


def round_robin(name: str, roster: Sequence[Seat], **options: Unpack[TeamOptions]) -> Team:
    """A panel: its roster speaks round after round on the goal that is its input (seed 002, Config reference).

    There are 5 rounds at most unless ``max_rounds`` says otherwise, no referee, and a default synthesizer. The result
    is what the synthesizer delivers, or with ``synthesizer=False`` a ``PanelShape``.

    Raises:
        ManifestError: for an empty roster, a name that stands twice, rounds that are no number above 0, an
            ``output_schema`` beside ``synthesizer=False``, and whatever else its manifest is refused for.
        TypeError: for an option that there is not.
    """
    known(TeamOptions, options, "round_robin")
    if options.get("max_rounds") is None:
        options["max_rounds"] = default_rounds("round-robin")
    return Team(name, strategy="round-robin", members=roster, **options)


def debate(name: str, debaters: Sequence[Seat], **options: Unpack[TeamOptions]) -> Team:
    """A debate: each debater argues for its ``stance``, and a judge decides on the question that is its input.

    There are 2 rounds at most unless ``max_rounds`` says otherwise, no moderator, a default judge and synthesizer. The
    result is what the synthesizer delivers, or with ``synthesizer=False`` a ``DebateShape``. Raises as ``round_robin``.
    """
    known(TeamOptions, options, "debate")
    return Team(name, strategy="debate", members=debaters, **options)


def roster_agent(
    name: str, role: str, *, team: str, model: str | Model | None = None, tools: Sequence[Tool] = (), more: str = ""
) -> Agent:
    """The default member of a panel called ``team``, as an agent to give another model, tools, or ``more`` to know."""
    prompt = _prompt("member", more, Name=name, Role=role, Team=team)
    return Agent(name, prompt=prompt, model=model, tools=tools)


def referee(
    name: str = "referee", *, team: str, model: str | Model | None = None, tools: Sequence[Tool] = (), more: str = ""
) -> Agent:
    """The default referee of a panel called ``team``, likewise; it answers with ``{"critique": …}``."""
    return Agent(
        name, prompt=_prompt("referee", more, Team=team), model=model, tools=tools, output_schema=RefereeOutput
    )


def synthesizer(
    name: str = "synthesizer",
    *,
    team: str,
    model: str | Model | None = None,
    tools: Sequence[Tool] = (),
    more: str = "",
    output_schema: Schema | None = None,
) -> Agent:
    """The default synthesizer of a panel called ``team``, likewise; it is handed the panel's shape, as JSON."""
    prompt = _prompt("synthesizer", more, Team=team)
    return Agent(name, prompt=prompt, model=model, tools=tools, output_schema=output_schema)


def _prompt(part: str, more: str, **known: str) -> str:
    """A default prompt as an agent of one's own has it: with what is known beforehand, and nothing of the round."""
    empty = dict.fromkeys(PROMPT_NAMES, "")
    text = fill(default_prompt("round-robin", part), {**empty, **known}.__getitem__)
    return f"{text}\n\n{more}" if more else text
