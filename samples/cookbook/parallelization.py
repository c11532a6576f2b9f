"""Parallelization: an agent translates three times at once, and another picks the best, from openai-agents' samples."""

import asyncio

import baton

translator = baton.Agent("translator", prompt="You translate the user's message to Spanish.")
picker = baton.Agent("picker", prompt="You pick the best translation from the given options, and say only that one.")
best: baton.Team[str] = baton.Team(
    "best",
    strategy="parallel",
    members=[baton.Member(f"translation-{number}", speaker=translator) for number in (1, 2, 3)],
    aggregator=picker,
)


async def main() -> str:
    """The best translation."""
    return (await baton.run(best, "Good morning!")).value


if __name__ == "__main__":
    print(asyncio.run(main()))
