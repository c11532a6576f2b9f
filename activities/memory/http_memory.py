"""The conversations at the address of a Memory: ARK's HTTP service, in its older and its newer form.

The newer form has ``GET`` and ``POST /messages`` for all conversations, the older one ``GET`` and ``PUT
/messages/CONVERSATION``. A service that answers the newer form with 404 or 405 is asked in the older one.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import quote

import httpx

from ...conversation.contracts.conversation_plan import ConversationPlan
from ...conversation.errors import AgentFailed, AgentUnavailable, KeyRefused, MemoryRejected, MemoryUnavailable
from ...conversation.failure import MAX_ERROR_TEXT
from ...conversation.messages.message import Message
from ...conversation.messages.openai_form import openai_form
from ...resources.base import JsonObject
from ...resources.duration import parse_duration
from ...resources.memory import Memory
from ..agent.bounded_http import CONNECT_SECONDS, BoundedTransport, Origin, endpoint_of, new_pool
from ..context.value_resolver import ValueResolver
from ..runtime.retry import is_retryable, retry_after
from .stored_messages import StoredPage

PAGE_SIZE = 500
"""Messages that are asked for at once."""

MAX_MESSAGES, MAX_PAGES = 20_000, 200
"""Messages of one conversation, and answers in which they come."""

MAX_OBJECTS = 100_000
"""Opening braces and brackets of one answer: services of the older form give the whole conversation at once."""

Form = str
"""``/messages`` in the newer form, ``/messages/CONVERSATION`` in the older one."""


class HttpMemory:
    """The services of all Memories. A run may only choose an address in the worker's own network if that allows it."""

    def __init__(self) -> None:
        self._pool = new_pool()

    async def read(self, memory: Memory, values: ValueResolver, conversation: ConversationPlan) -> list[Message]:
        """All messages of a conversation. Raises MemoryUnavailable, MemoryRejected or KeyRefused."""
        async with self._client(memory, values) as http:
            page = await self._page(http, memory, "/messages", {**_named(conversation), "limit": f"{PAGE_SIZE}"})
            if page is None:
                old = await self._page(http, memory, _old_path(conversation), {})
                if old is None:
                    raise MemoryRejected(f"{memory.id} has neither /messages nor /messages/CONVERSATION at its address")
                return old.said
            return [message async for part in self._pages(http, memory, conversation, page) for message in part]

    async def add(
        self,
        memory: Memory,
        values: ValueResolver,
        conversation: ConversationPlan,
        messages: Sequence[Message],
        query: str,
    ) -> None:
        """Adds messages to a conversation, as those of the ``query``; raises as ``read``."""
        stored: JsonObject = {"messages": [openai_form(each) for each in messages]}
        async with self._client(memory, values) as http:
            if await self._page(http, memory, "/messages", {**_named(conversation), "limit": "1"}) is not None:
                body: JsonObject = {**_named(conversation), "query_id": query, **stored}
                await self._send(http, memory, http.build_request("POST", "/messages", json=body))
            else:
                await self._send(http, memory, http.build_request("PUT", _old_path(conversation), json=stored))

    async def close(self) -> None:
        """Closes the connections."""
        await self._pool.aclose()

    @asynccontextmanager
    async def _client(self, memory: Memory, values: ValueResolver) -> AsyncIterator[httpx.AsyncClient]:
        """A client for one use, with the address and the secrets as they are now; redirects are not followed."""
        url, headers = endpoint_of(memory, values)
        trusted = None if memory.spec.address.is_from_run else Origin.trusted(url, memory, values)
        private = values.secrets.allows_private_hosts
        transport = BoundedTransport(self._pool, trusted, private=private, max_objects=MAX_OBJECTS)
        seconds = parse_duration(memory.spec.timeout).total_seconds()
        timeout = httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))
        yield httpx.AsyncClient(transport=transport, timeout=timeout, base_url=url, headers=headers)

    async def _pages(
        self, http: httpx.AsyncClient, memory: Memory, conversation: ConversationPlan, page: StoredPage
    ) -> AsyncIterator[list[Message]]:
        """The messages of a page and of those after it."""
        count = pages = 0
        while said := page.said:
            yield said
            count, pages = count + len(said), pages + 1
            if count > MAX_MESSAGES or pages > MAX_PAGES:
                bounds = f"{MAX_MESSAGES:,} messages or {MAX_PAGES} pages"
                raise MemoryRejected(f"{memory.id} has more than {bounds} in one conversation")
            place = {"cursor": str(page.next_cursor)} if page.next_cursor is not None else {"offset": str(count)}
            if not (page.has_more or (page.total or 0) > count):
                return
            asked = {**_named(conversation), "limit": f"{PAGE_SIZE}", **place}
            following = await self._page(http, memory, "/messages", asked)
            if following is None or following == page:  # a service that knows no pages gives the same again
                return
            page = following

    async def _page(
        self, http: httpx.AsyncClient, memory: Memory, path: str, asked: dict[str, str]
    ) -> StoredPage | None:
        """One answer; None if the service has no such path."""
        response = await self._send(http, memory, http.build_request("GET", path, params=asked), optional=True)
        if response.status_code in (404, 405):
            return None
        return await asyncio.to_thread(StoredPage.read, response.content, memory.id)

    async def _send(
        self, http: httpx.AsyncClient, memory: Memory, request: httpx.Request, *, optional: bool = False
    ) -> httpx.Response:
        try:
            async with asyncio.timeout(http.timeout.read):  # httpx bounds only the time between two pieces
                response = await http.send(request)
        except TimeoutError:
            raise MemoryUnavailable(f"{memory.id} gave no answer in {http.timeout.read:g} s") from None
        except (AgentFailed, AgentUnavailable) as error:  # what the transport says of answers that are out of bounds
            refused = MemoryRejected if error.non_retryable else MemoryUnavailable
            raise refused(f"{memory.id}: {error.message}") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise MemoryUnavailable(f"{memory.id} can't be reached: {error or type(error).__name__}") from None
        if response.is_success or (optional and response.status_code in (404, 405)):
            return response
        status, words = response.status_code, " ".join(response.text.split())[:MAX_ERROR_TEXT]
        text = f"{memory.id} answered HTTP {status} {response.reason_phrase}".strip() + (f": {words}" if words else "")
        if status in (401, 403):
            raise KeyRefused(text)
        if is_retryable(status):
            raise MemoryUnavailable(text, retry_after=retry_after(response.headers))
        raise MemoryRejected(text)


def _named(conversation: ConversationPlan) -> dict[str, str]:
    return {"conversation_id": conversation.id}


def _old_path(conversation: ConversationPlan) -> str:
    return f"/messages/{quote(conversation.id, safe='')}"
