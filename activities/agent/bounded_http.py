"""HTTP for agents that are executed elsewhere: answers are bounded, and the worker's own network is guarded."""

import httpx

from ...conversation.errors import AgentFailed, AgentUnavailable, InvalidManifest, ToolFailed
from ...resources.memory import Memory
from ...resources.values import check_url
from ..context.executor import Executor
from ..context.value_resolver import ValueResolver
from ..runtime.bounded_body import BodyLimits, bound_response
from ..tool.address_guard import public_address

MAX_BYTES = 8_000_000
"""Bytes of an answer, or of one event of a stream."""

MAX_OBJECTS = 10_000
"""Opening braces and brackets in them: many small values take far longer to read than one long text."""

CONNECT_SECONDS = 10.0


def new_pool() -> httpx.AsyncHTTPTransport:
    """Connections for all calls of a worker, which bounds their number itself."""
    return httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None, max_keepalive_connections=20))


class Origin(str):
    """Scheme, host and port of an address."""

    @classmethod
    def trusted(cls, url: str, executor: Executor | Memory, values: ValueResolver) -> "Origin | None":
        """The origin of an executor's address, unless a run has brought its manifest."""
        return None if values.is_guarded(executor) else cls.of(url)

    @classmethod
    def of(cls, url: str) -> "Origin":
        parsed = httpx.URL(url)
        return cls(f"{parsed.scheme}://{parsed.host}:{parsed.port or {'http': 80, 'https': 443}.get(parsed.scheme)}")


class BoundedTransport(httpx.AsyncBaseTransport):
    """Sends requests with the connections of ``pool``, which outlives it, and bounds the answers.

    A server that is not ``trusted``, because its address comes from elsewhere than the worker's own manifest, has to
    have a public address, unless ``private``. Raises AgentFailed for what is out of bounds.
    """

    def __init__(
        self,
        pool: httpx.AsyncBaseTransport,
        trusted: Origin | None,
        *,
        private: bool = False,
        max_objects: int = MAX_OBJECTS,
    ) -> None:
        self._pool, self._trusted, self._private, self._max_objects = pool, trusted, private, max_objects

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The response, whose body raises AgentFailed as soon as it is too long."""
        request.headers["accept-encoding"] = "identity"  # a compressed answer may be a thousand times as long
        if not (self._private or Origin.of(str(request.url)) == self._trusted):
            await _to_public_address(request)
        response = await self._pool.handle_async_request(request)
        host = request.headers["host"]
        bound_response(response, BodyLimits(MAX_BYTES, self._max_objects, lambda text: AgentFailed(f"{host} {text}")))
        return response


async def _to_public_address(request: httpx.Request) -> None:
    """Leads a request to the address that was checked, with the name of its host in the header and for TLS."""
    host = request.url.host
    try:
        address = await public_address(host, request.url.port or {"http": 80, "https": 443}[request.url.scheme])
    except ToolFailed as refused:
        family = AgentFailed if refused.non_retryable else AgentUnavailable
        raise family(refused.message) from None
    request.url = request.url.copy_with(host=address)
    request.extensions = {**request.extensions, "sni_hostname": host}
    request.headers["connection"] = "close"  # a connection for this host must not be reused for another one


def endpoint_of(executor: Executor | Memory, values: ValueResolver) -> tuple[str, dict[str, str]]:
    """The address of a server, without a slash at its end, and the headers of the requests to it, by their names.

    A header whose optional key is missing is left out.
    """
    url = (values.resolve(executor.spec.address, executor) or "").rstrip("/")
    try:
        check_url(url)
    except ValueError as error:
        raise InvalidManifest(f"{executor.id}: its address {error}") from None
    given = ((each.name, values.resolve(each.value, executor)) for each in executor.spec.headers)
    return url, {name: value.strip() for name, value in given if value is not None}
