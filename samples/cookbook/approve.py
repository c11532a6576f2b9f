"""Reflection until approval: a writer and a critic, from AutoGen's guide to teams (``RoundRobinGroupChat``).

Its ``TextMentionTermination("APPROVE")`` is a condition here. It is evaluated after each turn.
"""

import asyncio

import baton

primary = baton.Agent("primary", prompt="You are a helpful assistant.")
critic = baton.Agent("critic", prompt="You give feedback. Respond with 'APPROVE' when your feedback is addressed.")
poets: baton.Team[str] = baton.Team(
    "poets",
    strategy="round-robin",
    members=[primary, critic],
    terminate_when="message.contains('APPROVE')",
    max_turns=5,
)


async def main() -> list[str]:
    """All that was said."""
    result = await baton.run(poets, "Write a short poem about the fall season.")
    return [f"{message.name}: {message.content}" for message in result.messages]


if __name__ == "__main__":
    print(*asyncio.run(main()), sep="\n")
