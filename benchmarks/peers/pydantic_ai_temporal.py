"""Runs a team with pydantic-ai on Temporal: each member keeps a history and gets the new messages."""

import asyncio

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from common import read_params
    from on_temporal import on_temporal
    from pydantic_ai.durable_exec.temporal import PydanticAIPlugin, PydanticAIWorkflow, TemporalDurability
    from pydantic_ai_members import discuss, members

PARAMS = read_params()
AGENTS = members(PARAMS, TemporalDurability)


@workflow.defn
class Team(PydanticAIWorkflow):
    """The members speak in turn."""

    __pydantic_ai_agents__ = AGENTS

    @workflow.run
    async def run(self, turns: int, size: int) -> int:
        return await discuss(AGENTS, turns)


if __name__ == "__main__":
    asyncio.run(on_temporal(PARAMS, Team, PydanticAIPlugin()))
