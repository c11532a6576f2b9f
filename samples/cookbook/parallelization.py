"""Parallelization: three translations at once, and another agent picks the best, from the samples of openai-agents."""

import asyncio

import baton

picker = baton.Agent("picker", prompt="You pick the best translation from the given options, and say only that one.")
translators = [
    baton.Agent(f"translator-{number}", prompt=f"You are translator {number}. You translate to Spanish.")
    for number in (1, 2, 3)
]
best: baton.Team[str] = baton.Team("best", strategy="parallel", members=translators, aggregator=picker)


async def main() -> str:
    """The best translation."""
    return (await baton.run(best, "Good morning!")).value


if __name__ == "__main__":
    print(asyncio.run(main()))
