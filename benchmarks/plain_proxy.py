"""A proxy for OpenAI's API in 20 lines of starlette, beside which the gateway is measured.

python -m benchmarks.plain_proxy PORT MODEL_URL
"""

import sys
from collections.abc import AsyncIterator

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route


def main(port: int, model: str) -> None:
    """Serves the proxy until it is killed."""
    http = httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=None))

    async def proxy(request: Request) -> StreamingResponse:
        body = await request.body()

        async def chunks() -> AsyncIterator[bytes]:
            headers = {"content-type": "application/json"}
            async with http.stream("POST", f"{model}/chat/completions", content=body, headers=headers) as response:
                async for chunk in response.aiter_raw():
                    yield chunk

        return StreamingResponse(chunks(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/v1/chat/completions", proxy, methods=["POST"])])
    uvicorn.run(app, port=port, log_level="error", backlog=2_048)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
