"""Agents as tools: an orchestrator calls translators, and an editor has the last word, from openai-agents' samples.

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
    for language in ("spanish", "french", "italian")
]
orchestrator = baton.Agent(
    "orchestrator",
    prompt="You are a translation agent. You use the tools to translate, one for each language, and never yourself.",
    tools=translators,
    parallel_tool_calls=True,
)
editor = baton.Agent("editor", prompt="You inspect translations, correct them, and write one final response.")
desk: baton.Team[str] = baton.Team("desk", strategy="sequential", members=[orchestrator, editor])


async def main() -> str:
    """The translations."""
    return (await baton.run(desk, "Say 'Good morning!' in Spanish and French.")).value


if __name__ == "__main__":
    print(asyncio.run(main()))
