"""Human in the loop: a person approves a booking, from the how-to of LangGraph.

There, the tool calls ``interrupt`` and the program resumes the graph with a ``Command``. Here, the tool's manifest
requires approval. The run waits without any process, and another program may decide, such as ``baton approve``.
"""

import asyncio

import baton

hotels = baton.Manifest(
    "Tool",
    "book-hotel",
    {
        "type": "function",
        "description": "Books a hotel.",
        "function": {"name": "book-hotel"},
        "inputSchema": {"type": "object", "properties": {"hotel": {"type": "string"}}, "required": ["hotel"]},
        "approval": {},
    },
)


def book_hotel(hotel: str) -> str:
    """Books a hotel."""
    return f"Successfully booked a stay at {hotel}."


assistant = baton.Agent("assistant", prompt="You book hotels.", tools=[hotels])


async def main() -> str:
    """The answer, after a person has changed the hotel."""
    handle = await baton.start(assistant, "Book a stay at the McKittrick hotel.", functions=[book_hotel])
    async for event in handle.events():
        if isinstance(event, baton.WaitStartedEvent) and event.kind == "approval":
            await handle.approve(event.wait, arguments={"hotel": "Plaza"}, by="ann")
    return (await handle.result()).value


if __name__ == "__main__":
    print(asyncio.run(main()))
