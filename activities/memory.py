"""The activities ``recall`` and ``remember``: the conversation of a query, in the journal and in a Memory."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Self
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from temporalio import activity

from ..contracts.errors import (
    MAX_ERROR_TEXT,
    KeyRefused,
    MemoryRejected,
    MemoryUnavailable,
    UnknownResource,
)
from ..contracts.message import Head, Message, ToolCall, openai_form
from ..contracts.plan import ConversationPlan
from ..contracts.requests import RecallRequest, RecallResult, RememberRequest, RememberResult
from ..contracts.turn import Thread
from ..journal.journal import Conversations, Journal
from ..resources.base import JsonObject, parse_duration
from ..resources.catalog import Catalog
from ..resources.memory import Memory
from ..temporal.activity import idempotency_key, workflow_id
from .agent.executor import CONNECT_SECONDS, MAX_BYTES, endpoint_of
from .context.call_record import CallRecord
from .context.value_resolver import ValueResolver
from .runtime.http import is_retryable, retry_after
from .runtime.outbound import BodyLimits, Origin, Outbound, SharedConnections
from .runtime.secrets import SecretStore

NO_RESULT = "No result was kept."


class _Function(BaseModel):
    name: str = ""
    arguments: str = ""


class _Call(BaseModel):
    id: str = ""
    function: _Function = _Function()


class _Part(BaseModel):
    text: str = ""


class _Stored(BaseModel):
    """A message. What else a service stores with it is ignored."""

    role: str
    content: str | list[_Part] | None = None
    name: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None

    def as_message(self) -> Message:
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())
        role = {"developer": "system"}.get(self.role, self.role)
        calls = [
            ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments) for call in self.calls
        ]
        return Message.model_validate(
            {
                "role": role if role in ("system", "assistant", "tool") else "user",
                "content": content,
                "name": self.name,
                "tool_calls": tuple(calls) if role == "assistant" else (),
                "tool_call_id": self.tool_call_id,
            }
        )

    @property
    def calls(self) -> list[_Call]:
        return [call for call in self.tool_calls or () if call.id and call.function.name]


class _Record(BaseModel):
    message: _Stored


class StoredPage(BaseModel):
    """One answer: ``{messages, total}``, or ``{items, hasMore, nextCursor}``."""

    model_config = ConfigDict(hide_input_in_errors=True)

    messages: list[_Record | _Stored] | None = None
    items: list[_Record | _Stored] | None = None
    total: int | None = None
    has_more: bool = Field(False, alias="hasMore")
    next_cursor: JsonValue = Field(None, alias="nextCursor")

    @classmethod
    def read(cls, data: bytes, memory: str) -> Self:
        """The page in a body. Raises MemoryRejected for anything else."""
        try:
            page = cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise MemoryRejected(f"{memory} gives no list of messages: {where}: {first['msg']}") from None
        if page.messages is None and page.items is None:
            raise MemoryRejected(f"{memory} gives no list of messages: neither 'messages' nor 'items'")
        return page

    @property
    def said(self) -> list[Message]:
        """The messages, in their order."""
        found = self.messages if self.messages is not None else self.items or []
        return [(each.message if isinstance(each, _Record) else each).as_message() for each in found]


def with_results(messages: Iterable[Message]) -> list[Message]:
    """The messages, such that each tool call has one result and each result has its call: else models refuse them."""
    kept: list[Message] = []
    unanswered: dict[str, ToolCall] = {}
    for message in messages:
        if message.role == "tool":
            if unanswered.pop(message.tool_call_id or "", None):
                kept.append(message)
            continue
        kept += [call.result_message(NO_RESULT) for call in unanswered.values()]
        kept.append(message)
        unanswered = {call.id: call for call in message.tool_calls}
    return [*kept, *(call.result_message(NO_RESULT) for call in unanswered.values())]


def holds(stored: Sequence[Message], wanted: Sequence[Message], first: int) -> bool:
    """Whether messages stand in a row among those that are stored, from the place ``first`` on."""
    keys = [*map(_key, stored)]
    sought = [*map(_key, wanted)]
    return any(keys[place : place + len(sought)] == sought for place in range(first, len(keys) - len(sought) + 1))


def _key(message: Message) -> tuple[object, ...]:
    return message.role, message.content, message.tool_call_id, tuple(call.id for call in message.tool_calls)


# The newer form has ``GET`` and ``POST /messages`` for all conversations, the older one ``GET`` and ``PUT
# /messages/CONVERSATION``. A service that answers the newer form with 404 or 405 is asked in the older one.

PAGE_SIZE = 500
"""Messages that are asked for at once."""

MAX_MESSAGES = 20_000
MAX_PAGES = 200
"""Messages of one conversation, and answers in which they come."""

MAX_OBJECTS = 100_000
"""Opening braces and brackets of one answer: services of the older form give the whole conversation at once."""

Form = str
"""``/messages`` in the newer form, ``/messages/CONVERSATION`` in the older one."""


class HttpMemory:
    """The services of all Memories. A run may only choose an address in the worker's own network if that allows it."""

    def __init__(self) -> None:
        self._connections = SharedConnections()

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
        await self._connections.close()

    @asynccontextmanager
    async def _client(self, memory: Memory, values: ValueResolver) -> AsyncIterator[httpx.AsyncClient]:
        """A client for one use, with the address and the secrets as they are now; redirects are not followed."""
        url, headers = endpoint_of(memory, values)
        is_own = not (memory.spec.address.is_from_run or values.is_guarded(memory))
        outbound = Outbound(
            BodyLimits(MAX_BYTES, MAX_OBJECTS),
            guarded=not values.secrets.allows_private_hosts,
            trusted=Origin.of(url) if is_own else None,
            exceeded=MemoryRejected,
            refused=MemoryRejected,
            unreachable=MemoryUnavailable,
        )
        seconds = parse_duration(memory.spec.timeout).total_seconds()
        timeout = httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))
        yield outbound.open(httpx.AsyncClient, headers, transport=self._connections, timeout=timeout, base_url=url)

    async def _pages(
        self, http: httpx.AsyncClient, memory: Memory, conversation: ConversationPlan, page: StoredPage
    ) -> AsyncIterator[list[Message]]:
        """The messages of a page and of those after it."""
        count = pages = 0
        while said := page.said:
            yield said
            count += len(said)
            pages += 1
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
        except (MemoryRejected, MemoryUnavailable) as error:  # the client's own: they name the host alone
            raise type(error)(f"{memory.id}: {error.message}") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise MemoryUnavailable(f"{memory.id} can't be reached: {error or type(error).__name__}") from None
        if response.is_success or (optional and response.status_code in (404, 405)):
            return response
        status = response.status_code
        words = " ".join(response.text.split())[:MAX_ERROR_TEXT]
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


def find_memory(catalog: Catalog, conversation: ConversationPlan) -> Memory:
    """The Memory that keeps a conversation. Raises UnknownResource if the catalog has not got it."""
    memory_id = f"Memory/{conversation.namespace}/{conversation.memory}"
    if isinstance(found := catalog.by_id(memory_id), Memory):
        return found
    raise UnknownResource(f"the run's catalog has no {memory_id}")


class MemoryActivities:
    """The activities of a query's conversation, which the journal keeps or a Memory at its address."""

    def __init__(self, journal: Journal, memory: HttpMemory, secrets: SecretStore) -> None:
        self._journal = journal
        self._memory = memory
        self._secrets = secrets

    @activity.defn(name="recall")
    async def recall(self, request: RecallRequest) -> RecallResult:
        """The thread with the question in the conversation; another attempt returns the same place."""
        thread = request.thread
        row_id = f"{idempotency_key()}/question"
        row = await self._journal.find(row_id)
        if row is None:
            before = await self._read(request)
            if not before.id:
                return RecallResult(thread=thread)
            question = await self._journal.row(thread.question)
            row = await self._journal.append_once(before, question.message, row_id)
        known = int(await self._record(Head(), idempotency_key()).read("known") or 0)
        thread = thread.asking(row.head)
        return RecallResult(thread=thread, before=row.before, known=known)

    @activity.defn(name="remember")
    async def remember(self, request: RememberRequest) -> RememberResult:
        """Adds the items after whatever others have added meanwhile; another attempt adds nothing twice."""
        if request.conversation.remote:
            await self._add_remotely(request, idempotency_key())
        else:
            conversations = Conversations(self._journal)
            await conversations.add(request.conversation, request.before, request.items, idempotency_key())
        return RememberResult()

    async def _read(self, request: RecallRequest) -> Head:
        """The place after all that was said; what the Memory's service has is written to the journal first."""
        conversation = request.conversation
        values = await ValueResolver.of(self._journal, request.thread, self._secrets)
        found = await self._memory.read(find_memory(values.catalog, conversation), values, conversation)
        await self._record(Head(), idempotency_key()).write("known", f"{len(found)}")
        said = [await self._secrets.redact_message(each) for each in with_results(found)]
        return await self._journal.append(Head(), said, idempotency_key())

    async def _add_remotely(self, request: RememberRequest, key: str) -> None:
        """Sends the messages, unless an earlier attempt has begun to, and they are there.

        Summaries are not sent: nobody said them, and whoever reads the service would take them for messages.
        """
        conversation = request.conversation
        before = request.before
        head = await self._journal.append(before, request.items, key)
        rows = await self._journal.read(head, lambda row: row.parent == before.id)
        said = [row.message for row in rows if row.message.summarizes is None]
        thread = Thread(catalog=request.catalog, question="", head=head)
        values = await ValueResolver.of(self._journal, thread, self._secrets)
        memory = find_memory(values.catalog, conversation)
        record = self._record(head, key)
        if await record.read("sent") is not None:
            stored = await self._memory.read(memory, values, conversation)
            if holds(stored, said, request.known):
                return
        await record.write("sent")
        await self._memory.add(memory, values, conversation, said, workflow_id())

    def _record(self, head: Head, key: str) -> CallRecord:
        return CallRecord(self._journal, self._secrets, head, key)
