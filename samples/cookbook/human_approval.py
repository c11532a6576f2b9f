"""Human in the loop: a person approves a booking, from the how-to of LangGraph.

There, the tool calls ``interrupt`` and the program resumes the graph with a ``Command``. Here, the tool requires
approval. The run waits without any process, and another program may decide, such as ``baton approve``.
"""

import asyncio

import baton


@baton.tool(approval=True)
def book_hotel(hotel: str) -> str:
    """Books a hotel."""
    return f"Successfully booked a stay at {hotel}."


assistant = baton.Agent("assistant", prompt="You book hotels.", tools=[book_hotel])


async def main() -> str:
    """The answer, after a person has changed the hotel."""
    handle = await baton.start(assistant, "Book a stay at the McKittrick hotel.")
    async for event in handle.events():
        if isinstance(event, baton.WaitStartedEvent) and event.kind == "approval":
            await handle.approve(event.wait, arguments={"hotel": "Plaza"}, by="ann")
    return (await handle.result()).value


if __name__ == "__main__":
    print(asyncio.run(main()))
