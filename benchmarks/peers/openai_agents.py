"""Runs a team with openai-agents on Temporal: each member is run on the whole conversation."""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from agents import Agent, OpenAIProvider, Runner, set_tracing_disabled
    from common import MEMBERS, PROMPT, QUESTION, read_params
    from on_temporal import on_temporal
    from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin


@workflow.defn
class Team:
    """The members speak in turn."""

    @workflow.run
    async def run(self, turns: int, size: int) -> int:
        members = [Agent(name=name, instructions=PROMPT.format(name), model=f"random-{size}") for name in MEMBERS]
        said = [{"role": "user", "content": QUESTION}]
        for turn in range(turns):
            result = await Runner.run(members[turn % len(members)], input=said)
            said = result.to_input_list()
        return turns


async def run(workflow_type: Any) -> None:
    """Runs a workflow as often as the input says, with a worker in this process."""
    set_tracing_disabled(True)
    params = read_params()
    provider = OpenAIProvider(base_url=params.model, api_key="scripted", use_responses=False)
    timeouts = ModelActivityParameters(start_to_close_timeout=timedelta(minutes=5))
    await on_temporal(params, workflow_type, OpenAIAgentsPlugin(model_params=timeouts, model_provider=provider))


if __name__ == "__main__":
    asyncio.run(run(Team))
