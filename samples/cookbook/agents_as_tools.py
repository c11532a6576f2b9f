"""Agents as tools: an orchestrator calls translators, from the samples of openai-agents.

A call of such a tool is a run of its own, with a history of its own. Its agent reads the call's input only.
"""

import asyncio

import baton

translators = [
    baton.Agent(
        f"translate-to-{language}",
        prompt=f"You translate the user's message to {language.title()}.",
        description=f"Translates the user's message to {language.title()}.",
    )
    for language in ("spanish", "french")
]
orchestrator = baton.Agent(
    "orchestrator",
    prompt="You are a translation agent. You use the tools to translate, one for each language, and never yourself.",
    tools=translators,
    parallel_tool_calls=True,
)


async def main() -> str:
    """The translations."""
    question = "Say 'Good morning!' in Spanish and French."
    return (await baton.run(orchestrator, question)).value


if __name__ == "__main__":
    print(asyncio.run(main()))
