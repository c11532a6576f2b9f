"""A crew of a researcher and an analyst with a report of a declared type, from CrewAI's quickstart.

A sequential crew is a sequential team; the last task's ``output_pydantic`` is the last agent's ``output_schema``.
"""

import asyncio

from pydantic import BaseModel

import baton


class Report(BaseModel):
    """What the analyst delivers."""

    title: str
    findings: list[str]


researcher = baton.Agent(
    "researcher",
    prompt="You are a senior researcher of {{.topic}}. Find the most relevant information, as bullet points.",
    parameters={"topic": "AI agents"},
)
analyst = baton.Agent(
    "analyst",
    prompt="You are a reporting analyst. Expand what the researcher has found into a report.",
    output_schema=Report,
)
crew: baton.Team[Report] = baton.Team("crew", strategy="sequential", members=[researcher, analyst])


async def main() -> Report:
    """The report."""
    result = await baton.run(crew, "Research it thoroughly.", budget={"model_calls": 10})
    return result.value


if __name__ == "__main__":
    print(asyncio.run(main()))
