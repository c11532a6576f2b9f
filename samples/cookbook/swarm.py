"""Swarm: two agents hand the conversation to each other, from the README of LangGraph's swarm.

The second query of the conversation begins with the agent that had it last, also after a restart of everything.
"""

import asyncio

import baton


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


alice = baton.Agent("alice", prompt="You are Alice, an addition expert.", tools=[add])
bob = baton.Agent("bob", prompt="You are Bob. You speak like a pirate, and leave sums to Alice.")
swarm: baton.Team[str] = baton.Team("swarm", strategy="handoff", members=[alice, bob], max_turns=10)


async def main() -> list[str]:
    """The answers to two queries of one conversation."""
    first = await baton.run(swarm, "I'd like to speak to Bob.", conversation="customer-1")
    second = await baton.run(swarm, "What's 5 + 7?", conversation="customer-1")
    return [first.value, second.value]


if __name__ == "__main__":
    print(asyncio.run(main()))
