"""Runs a team with langgraph: a node for each member, and a checkpoint in PostgreSQL after each.

With ``delta`` as a second argument the messages are kept in a ``DeltaChannel``.
"""

import asyncio
import sys
from typing import Annotated, Any, TypedDict

from common import MEMBERS, PROMPT, QUESTION, Params, read_params, timed
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages


class Plain(TypedDict):
    """The conversation, kept whole in each checkpoint."""

    messages: Annotated[list[AnyMessage], add_messages]


def extended(said: list[AnyMessage], more: list[list[AnyMessage]]) -> list[AnyMessage]:
    """The messages with those that came after them."""
    return [*said, *(message for each in more for message in each)]


class Delta(TypedDict):
    """The conversation, of which a checkpoint keeps what is new."""

    messages: Annotated[list[AnyMessage], DeltaChannel(extended)]


def graph(params: Params, state: type) -> Any:
    """The members, of whom each leads to the next, until all turns are taken."""
    model = ChatOpenAI(model=params.model_name, base_url=params.model, api_key="scripted")
    built = StateGraph(state)
    for index, name in enumerate(MEMBERS):

        async def speak(now: Any, name: str = name) -> dict[str, list[AnyMessage]]:
            answer = await model.ainvoke([SystemMessage(PROMPT.format(name)), *now["messages"]])
            return {"messages": [AIMessage(answer.content, name=name)]}

        def following(now: Any, other: str = MEMBERS[index - 1]) -> str:
            return END if len(now["messages"]) > params.turns else other

        built.add_node(name, speak)
        built.add_conditional_edges(name, following, [MEMBERS[index - 1], END])
    return built.add_edge(START, MEMBERS[0])


async def main() -> None:
    params = read_params()
    async with AsyncPostgresSaver.from_conn_string(params.postgres) as saver:
        await saver.setup()
        team = graph(params, Delta if "delta" in sys.argv else Plain).compile(checkpointer=saver)

        async def play(run: str) -> object:
            config: Any = {"configurable": {"thread_id": run}, "recursion_limit": params.turns + 10}
            return await team.ainvoke({"messages": [HumanMessage(QUESTION)]}, config)

        await timed(params.ids, play)


if __name__ == "__main__":
    asyncio.run(main())
