"""Runs agents with openai-agents on Temporal, with a function as a tool or without: the peer of ``functions``."""

import asyncio
import sys

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    import openai_agents
    from agents import Agent, Runner, function_tool
    from common import MEMBERS, PROMPT, QUESTION


@workflow.defn
class Asked:
    """An agent answers one question."""

    @workflow.run
    async def run(self, turns: int, size: int) -> int:
        name = MEMBERS[0]
        await Runner.run(Agent(name=name, instructions=PROMPT.format(name), model=f"random-{size}"), input=QUESTION)
        return turns


@workflow.defn
class AskedWithFunction:
    """An agent that has a function of its own as a tool answers one question."""

    @workflow.run
    async def run(self, turns: int, size: int) -> int:
        run = workflow.info().workflow_id

        @function_tool
        def look_up(word: str) -> str:
            """Looks a word up."""
            return f"the meaning of {word} is {run}"

        name = MEMBERS[0]
        agent = Agent(name=name, instructions=PROMPT.format(name), model=f"random-{size}", tools=[look_up])
        await Runner.run(agent, input=QUESTION)
        return turns


if __name__ == "__main__":
    asyncio.run(openai_agents.run(AskedWithFunction if sys.argv[2] == "functions" else Asked))
