"""Agents as tools: an orchestrator calls translators, from the samples of openai-agents.

A call of such a tool is a run of its own, with a history of its own. Its agent reads the call's input only.
"""

import asyncio

import baton

translators = [
    baton.Agent("spanish", prompt="You translate the user's message to Spanish."),
    baton.Agent("french", prompt="You translate the user's message to French."),
]
tools = [
    baton.Manifest(
        "Tool",
        f"translate-to-{translator.name}",
        {
            "type": "agent",
            "description": f"Translates the user's message to {translator.name.title()}.",
            "inputSchema": {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]},
            "agent": {"name": translator.name},
        },
    )
    for translator in translators
]
orchestrator = baton.Agent(
    "orchestrator",
    prompt="You are a translation agent. You use the tools to translate, one for each language, and never yourself.",
    tools=tools,
    parallel_tool_calls=True,
)


async def main() -> str:
    """The translations."""
    question = "Say 'Good morning!' in Spanish and French."
    return (await baton.run(orchestrator, question, resources=translators)).value


if __name__ == "__main__":
    print(asyncio.run(main()))
