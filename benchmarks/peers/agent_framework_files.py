"""Runs a team with agent-framework: a group chat, with a checkpoint in a file after each step."""

import asyncio
from typing import Any

from agent_framework import Agent, FileCheckpointStorage
from agent_framework.openai import OpenAIChatCompletionClient
from agent_framework_orchestrations import GroupChatBuilder
from common import MEMBERS, PROMPT, QUESTION, read_params, timed


async def main() -> None:
    params = read_params()
    client = OpenAIChatCompletionClient(model=params.model_name, base_url=params.model, api_key="scripted")

    async def play(run: str) -> object:
        members = [Agent(client, PROMPT.format(name), name=name) for name in MEMBERS]
        chat = GroupChatBuilder(
            participants=members,
            selection_func=lambda state: MEMBERS[state.current_round % len(MEMBERS)],
            max_rounds=params.turns,
            checkpoint_storage=FileCheckpointStorage(params.folder),
        ).build()
        chat._runner._max_iterations = 10 * params.turns  # else 100, two for a turn, and its builder doesn't ask
        result: Any = await chat.run(QUESTION)
        return result

    await timed(params.ids, play)


if __name__ == "__main__":
    asyncio.run(main())
