"""Reflection: a writer and a critic take turns, from the tutorial of LangGraph.

There, two nodes and a conditional edge count the messages. Here, it is a looping team with a turn limit.
"""

import asyncio

import baton

writer = baton.Agent(
    "writer",
    prompt="You write essays of five paragraphs. If somebody has criticized your essay, revise it.",
)
teacher = baton.Agent(
    "teacher",
    prompt="You grade essays. Recommend improvements of length, depth and style.",
)
reflection: baton.Team[str] = baton.Team(
    "reflection",
    strategy="sequential",
    loops=True,
    members=[writer, teacher],
    max_turns=3,
    on_max_turns="complete",
)


async def main() -> str:
    """The essay after one revision."""
    result = await baton.run(reflection, "Why is The Little Prince relevant today?")
    return result.value


if __name__ == "__main__":
    print(asyncio.run(main()))
