"""A chat over HTTP: FastAPI starts runs and streams their events; a browser that reconnects misses none.

fastapi run samples/fastapi_app.py, or: uvicorn samples.fastapi_app:app
"""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import FastAPI, Header
from fastapi.responses import StreamingResponse

import baton


def refund(order: str, euros: int) -> str:
    """Refunds an order."""
    return f"refunded {euros} EUR for {order}"


clerk = baton.Agent("clerk", prompt="You refund orders of customers.", tools=[refund])
writer = baton.Agent("writer", prompt="You tell the customer what the clerk did.")
team: baton.Team[str] = baton.Team("refunds", strategy="sequential", members=[clerk, writer])
app = FastAPI()


@app.post("/runs")
async def ask(question: str, customer: str) -> str:
    """Starts a run in the customer's conversation, and returns its id."""
    return (await baton.start(team, question, conversation=customer)).id


@app.get("/runs/{run}/events")
async def stream(run: str, last_event_id: Annotated[str | None, Header()] = None) -> StreamingResponse:
    """The events of a run as server-sent events; their id is the cursor from which a browser continues."""
    handle = await baton.attach(run)

    async def lines() -> AsyncIterator[str]:
        async for event in handle.events(after=last_event_id):
            yield f"id: {event.cursor}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")
