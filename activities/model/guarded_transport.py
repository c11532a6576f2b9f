"""The connections to a model whose address a run has brought: they lead to public addresses alone."""

from urllib.parse import urlsplit

import httpx2

from ...conversation.errors import ModelRejected, ModelUnavailable, ToolFailed
from ..tool.address_guard import public_address


async def public_address_of(url: str) -> str:
    """A public IP address of the server at ``url``. Raises ModelRejected or ModelUnavailable."""
    parts = urlsplit(url)
    try:
        return await public_address(parts.hostname or "", parts.port or {"http": 80, "https": 443}[parts.scheme])
    except ToolFailed as refused:
        raise (ModelRejected if refused.non_retryable else ModelUnavailable)(refused.message) from None


class GuardedTransport(httpx2.AsyncHTTPTransport):
    """Sends each request, also one that a redirect asks for, to the IP address that was checked.

    Raises ModelRejected for a server in the worker's own network, ModelUnavailable for a name that can't be found.
    """

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The response to a request."""
        host = request.url.host
        address = await public_address_of(str(request.url))
        request.url = request.url.copy_with(host=address)
        request.extensions = {**request.extensions, "sni_hostname": host}
        request.headers["connection"] = "close"  # so that no other host at this address uses the connection
        return await super().handle_async_request(request)
