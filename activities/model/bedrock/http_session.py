"""The connections to Bedrock: bounded while they are read, without redirects, and guarded for brought addresses."""

import socket
from typing import Any

import aiohttp
from aiobotocore.httpsession import AIOHTTPSession
from aiohttp.abc import AbstractResolver, ResolveResult

from ....conversation.errors import ModelRejected
from ...tool.address_guard import public_address
from ..connection import LIMITS

_PIECE = 65_536


class BoundedResponse(aiohttp.ClientResponse):
    """A response whose body is not read beyond the limit of a model's answer."""

    async def read(self) -> bytes:
        """The body. Raises AnswerTooLong; the library itself bounds the events of a stream."""
        if self._body is None:
            body = bytearray()
            async for piece in self.content.iter_chunked(_PIECE):
                body += piece
                if LIMITS.size is not None and len(body) > LIMITS.size:
                    self.close()
                    raise LIMITS.refuse(f"gives more than {LIMITS.size:,} bytes")
            self._body = bytes(body)
        return self._body


class BedrockSession(AIOHTTPSession):
    """The library's session. Bedrock redirects nobody; what does is not Bedrock, and may lead to any address."""

    async def _get_session(self, proxy_url: str | None) -> aiohttp.ClientSession:
        own: Any = self  # its attributes, which the library's types leave out
        if proxy_url not in own._sessions:
            tracing = aiohttp.TraceConfig()
            tracing.on_request_redirect.append(_refuse_redirect)
            session = aiohttp.ClientSession(
                connector=own._create_connector(proxy_url),
                timeout=own._timeout,
                skip_auto_headers={"CONTENT-TYPE"},
                auto_decompress=False,
                response_class=BoundedResponse,
                trace_configs=[tracing],
            )
            own._sessions[proxy_url] = await own._exit_stack.enter_async_context(session)
        found: aiohttp.ClientSession = own._sessions[proxy_url]
        return found


async def _refuse_redirect(_: aiohttp.ClientSession, __: Any, request: aiohttp.TraceRequestRedirectParams) -> None:
    raise ModelRejected(f"{request.url.host} leads to another address, which Bedrock never does")


class GuardedResolver(AbstractResolver):
    """Gives the one address that was checked. A host that is an address itself is never looked up."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """A public address of a host. Raises ToolFailed if any address of it is not public."""
        address = await public_address(host, port)
        found = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [ResolveResult(hostname=host, host=address, port=port, family=found, proto=0, flags=0)]

    async def close(self) -> None:
        """Nothing to close."""
