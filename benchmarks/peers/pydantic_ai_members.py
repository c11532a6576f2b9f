"""The members of a team of pydantic-ai, and their discussion; the same on Temporal and on DBOS."""

from collections.abc import Callable, Sequence
from typing import Any

from common import MEMBERS, PROMPT, QUESTION, Params
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


def members(params: Params, durability: Callable[[], Any]) -> list[Agent]:
    """The agents, made durable."""
    model = OpenAIChatModel(params.model_name, provider=OpenAIProvider(base_url=params.model, api_key="scripted"))
    return [Agent(model, name=name, instructions=PROMPT.format(name), capabilities=[durability()]) for name in MEMBERS]


async def discuss(agents: Sequence[Agent], turns: int) -> int:
    """The members speak in turn; each is told what the other has said, on top of all that it knows."""
    histories: list[list[Any]] = [[] for _ in agents]
    said = QUESTION
    for turn in range(turns):
        index = turn % len(agents)
        question = said if turn != 1 else f"{QUESTION}\n\n{said}"
        result = await agents[index].run(question, message_history=histories[index])
        histories[index], said = result.all_messages(), result.output
    return turns
