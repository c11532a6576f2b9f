"""Routing: a triage agent hands off to an agent of the user's language, from the samples of openai-agents.

The words are printed while the model writes them.
"""

import asyncio

import baton

french = baton.Agent("french", prompt="You only speak French.")
spanish = baton.Agent("spanish", prompt="You only speak Spanish.")
english = baton.Agent("english", prompt="You only speak English.")
triage = baton.Agent("triage", prompt="Hand off to the agent that speaks the language of the request.")
desk: baton.Team[str] = baton.Team(
    "desk",
    strategy="handoff",
    members=[
        triage,
        baton.Member("french", speaker=french, handoffs=[]),
        baton.Member("spanish", speaker=spanish, handoffs=[]),
        baton.Member("english", speaker=english, handoffs=[]),
    ],
)


async def main() -> tuple[str, str]:
    """The agent that answered, and its answer."""
    agent = "triage"
    handle = await baton.start(desk, "Hola, ¿cómo estás?")
    async for event in handle.events():
        match event:
            case baton.HandoffEvent(receiver=receiver):
                agent = receiver
            case baton.TextDeltaEvent(tool=None, text=text):
                print(text, end="", flush=True)
            case _:
                pass
    return agent, (await handle.result()).value


if __name__ == "__main__":
    print(asyncio.run(main()))
