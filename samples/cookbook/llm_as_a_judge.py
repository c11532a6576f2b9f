"""A model as a judge: an outline is improved until a judge accepts it, from the samples of openai-agents.

The loop is plain Python, and the judge's answer is an instance of a pydantic model. All runs share one conversation.
"""

import asyncio
from typing import Literal

from pydantic import BaseModel

import baton


class Evaluation(BaseModel):
    """What the judge answers."""

    feedback: str
    score: Literal["pass", "needs_improvement", "fail"]


author = baton.Agent(
    "author",
    prompt="You write a very short outline of a story. If there is feedback, use it to improve the outline.",
)
judge = baton.Agent(
    "judge",
    prompt="You decide whether an outline is good enough. Never give it a pass on the first try.",
    output_schema=Evaluation,
)


async def main() -> str:
    """The accepted outline."""
    outline = (await baton.run(author, "A detective story in space.", conversation="story")).value
    while True:
        evaluation = (await baton.run(judge, "Is it good enough?", conversation="story")).value
        if evaluation.score == "pass":
            return outline
        outline = (await baton.run(author, f"Feedback: {evaluation.feedback}", conversation="story")).value


if __name__ == "__main__":
    print(asyncio.run(main()))
