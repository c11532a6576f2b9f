"""The activities ``recall`` and ``remember``: the conversation of a query, in the journal and in a Memory."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
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
from ..contracts.message import Head, Message, RowRange, ToolCall, openai_form
from ..contracts.plan import ConversationPlan
from ..contracts.requests import (
    ConversationItem,
    RecallRequest,
    RecallResult,
    RememberRequest,
    RememberResult,
)
from ..contracts.turn import Thread
from ..journal.journal import Conversations, Copies, Journal
from ..journal.leases import Lease
from ..journal.rows import Row
from ..observability.spans import Attributes, call_span
from ..resources.base import JsonObject, parse_duration
from ..resources.catalog import Catalog
from ..resources.memory import Memory
from ..temporal.activity import idempotency_key, workflow_id
from ..temporal.threads import COMPUTING
from .agent.executor import CONNECT_SECONDS, MAX_BYTES, endpoint_of
from .context.call_record import CallRecord
from .context.value_resolver import ValueResolver
from .runtime.http import is_retryable, retry_after
from .runtime.outbound import BodyLimits, Outbound, SharedConnections
from .runtime.secrets import SecretStore

NO_RESULT = "No result was stored."


class _Function(BaseModel):
    name: str = ""
    arguments: str = ""


class _Call(BaseModel):
    id: str = ""
    function: _Function = _Function()


class _Part(BaseModel):
    text: str = ""


class _StoredMessage(BaseModel):
    """A message. Other fields of the service are ignored."""

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
    message: _StoredMessage


class StoredPage(BaseModel):
    """One response: ``{messages, total}``, or ``{items, hasMore, nextCursor}``."""

    model_config = ConfigDict(hide_input_in_errors=True)

    messages: list[_Record | _StoredMessage] | None = None
    items: list[_Record | _StoredMessage] | None = None
    total: int | None = None
    has_more: bool = Field(False, alias="hasMore")
    next_cursor: JsonValue = Field(None, alias="nextCursor")

    @classmethod
    def read(cls, data: bytes, memory: str) -> Self:
        """Parses a response body. Raises MemoryRejected if it is not a page."""
        try:
            page = cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise MemoryRejected(f"{memory} returned no list of messages: {where}: {first['msg']}") from None
        if page.messages is None and page.items is None:
            raise MemoryRejected(f"{memory} returned no list of messages: neither 'messages' nor 'items'")
        return page

    @property
    def conversation(self) -> list[Message]:
        """The messages, in order."""
        stored = self.messages if self.messages is not None else self.items or []
        return [(record.message if isinstance(record, _Record) else record).as_message() for record in stored]


def with_results(messages: Iterable[Message]) -> list[Message]:
    """The messages with exactly one result for every tool call, and no other results: models require that."""
    paired: list[Message] = []
    unanswered: dict[str, ToolCall] = {}
    for message in messages:
        if message.role == "tool":
            if unanswered.pop(message.tool_call_id or "", None):
                paired.append(message)
            continue
        paired += [call.result_message(NO_RESULT) for call in unanswered.values()]
        paired.append(message)
        unanswered = {call.id: call for call in message.tool_calls}
    return [*paired, *(call.result_message(NO_RESULT) for call in unanswered.values())]


def contains(stored: Sequence[Message], wanted: Sequence[Message], first: int) -> bool:
    """Whether ``stored`` contains the messages ``wanted`` as a contiguous sequence, at the index ``first`` or later."""
    keys = [*map(_key, stored)]
    wanted_keys = [*map(_key, wanted)]
    count = len(wanted_keys)
    return any(keys[start : start + count] == wanted_keys for start in range(first, len(keys) - count + 1))


def _key(message: Message) -> tuple[object, ...]:
    return message.role, message.content, message.tool_call_id, tuple(call.id for call in message.tool_calls)


# The newer protocol has ``GET`` and ``POST /messages`` for all conversations, the older one ``GET`` and ``PUT
# /messages/CONVERSATION``. If a service answers 404 or 405 to the newer protocol, the older one is used.

PAGE_SIZE = 500
"""Messages per request."""

MAX_MESSAGES = 20_000
MAX_PAGES = 200
"""Messages of one conversation, and pages of them, at most."""

MAX_OBJECTS = 100_000
"""Opening braces and brackets of one response: in the older protocol it has the whole conversation."""


class HttpMemory:
    """The clients of all Memory services."""

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
                return old.conversation
            return [message async for part in self._pages(http, memory, conversation, page) for message in part]

    async def add(
        self,
        lease: Lease,
        memory: Memory,
        values: ValueResolver,
        conversation: ConversationPlan,
        messages: Sequence[Message],
        query: str,
    ) -> None:
        """Adds the messages of a ``query`` to a conversation. Raises the errors of ``read`` and ``Lease.send``."""
        await lease.send()
        stored: JsonObject = {"messages": [openai_form(message) for message in messages]}
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
        """A client for one operation, with the current address and secrets. It follows no redirects."""
        server, headers = endpoint_of(memory, values)
        outbound = Outbound(
            BodyLimits(MAX_BYTES, MAX_OBJECTS),
            destination=server,
            headers=headers,
            exceeded=MemoryRejected,
            refused=MemoryRejected,
            unreachable=MemoryUnavailable,
        )
        seconds = parse_duration(memory.spec.timeout).total_seconds()
        timeout = httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))
        yield outbound.open(httpx.AsyncClient, transport=self._connections, timeout=timeout, base_url=server.url)

    async def _pages(
        self, http: httpx.AsyncClient, memory: Memory, conversation: ConversationPlan, page: StoredPage
    ) -> AsyncIterator[list[Message]]:
        """The messages of a page and of all pages after it."""
        count = 0
        pages = 0
        while messages := page.conversation:
            yield messages
            count += len(messages)
            pages += 1
            if count > MAX_MESSAGES or pages > MAX_PAGES:
                bounds = f"{MAX_MESSAGES:,} messages or {MAX_PAGES} pages"
                raise MemoryRejected(f"{memory.id} has more than {bounds} in one conversation")
            offset = {"cursor": str(page.next_cursor)} if page.next_cursor is not None else {"offset": str(count)}
            if not (page.has_more or (page.total or 0) > count):
                return
            parameters = {**_named(conversation), "limit": f"{PAGE_SIZE}", **offset}
            following = await self._page(http, memory, "/messages", parameters)
            if following is None or following == page:  # a service without paging returns the same page again
                return
            page = following

    async def _page(
        self, http: httpx.AsyncClient, memory: Memory, path: str, parameters: dict[str, str]
    ) -> StoredPage | None:
        """One response; None if the service has no such path."""
        response = await self._send(http, memory, http.build_request("GET", path, params=parameters), optional=True)
        if response.status_code in (404, 405):
            return None
        return await COMPUTING.run(StoredPage.read, response.content, memory.id)

    async def _send(
        self, http: httpx.AsyncClient, memory: Memory, request: httpx.Request, *, optional: bool = False
    ) -> httpx.Response:
        try:
            async with asyncio.timeout(http.timeout.read):  # httpx bounds only the time between two chunks
                response = await http.send(request)
        except TimeoutError:
            raise MemoryUnavailable(f"{memory.id} did not respond within {http.timeout.read:g} s") from None
        except (MemoryRejected, MemoryUnavailable) as error:  # of the Outbound: they name only the host
            raise type(error)(f"{memory.id}: {error.message}") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise MemoryUnavailable(f"{memory.id} can't be reached: {error or type(error).__name__}") from None
        if response.is_success or (optional and response.status_code in (404, 405)):
            return response
        status = response.status_code
        body = " ".join(response.text.split())[:MAX_ERROR_TEXT]
        text = f"{memory.id} answered HTTP {status} {response.reason_phrase}".strip() + (f": {body}" if body else "")
        if status in (401, 403):
            raise KeyRefused(text)
        if is_retryable(status):
            raise MemoryUnavailable(text, retry_after=retry_after(response.headers))
        raise MemoryRejected(text)


class NoMemory(HttpMemory):
    """Memory services that are never called, for the replay of a recording: it has the earlier messages itself."""

    async def read(self, memory: Memory, values: ValueResolver, conversation: ConversationPlan) -> list[Message]:
        """No messages."""
        return []

    async def add(
        self,
        lease: Lease,
        memory: Memory,
        values: ValueResolver,
        conversation: ConversationPlan,
        messages: Sequence[Message],
        query: str,
    ) -> None:
        """Does nothing."""


def _named(conversation: ConversationPlan) -> dict[str, str]:
    return {"conversation_id": conversation.id}


def _old_path(conversation: ConversationPlan) -> str:
    return f"/messages/{quote(conversation.id, safe='')}"


def find_memory(catalog: Catalog, conversation: ConversationPlan) -> Memory:
    """The Memory that stores a conversation. Raises UnknownResource if the catalog does not have it."""
    memory_id = f"Memory/{conversation.namespace}/{conversation.memory}"
    if isinstance(memory := catalog.by_id(memory_id), Memory):
        return memory
    raise UnknownResource(f"the run's catalog has no {memory_id}")


def _content(step: Sequence[Row]) -> str:
    return "\n".join(row.message.model_dump_json() for row in step)


def _attributes(conversation: ConversationPlan) -> Callable[[], Attributes]:
    memory = f"Memory/{conversation.namespace}/{conversation.memory}"
    return lambda: {"baton.memory": memory, "gen_ai.conversation.id": conversation.id}


class MemoryActivities:
    """The activities of a query's conversation, which is stored in the journal or by a Memory's service."""

    def __init__(self, journal: Journal, memory: HttpMemory, secrets: SecretStore) -> None:
        self._journal = journal
        self._memory = memory
        self._secrets = secrets

    @activity.defn(name="recall")
    async def recall(self, request: RecallRequest) -> RecallResult:
        """The thread with the question appended to the conversation; a retry returns the same thread."""
        thread = request.thread
        record = CallRecord(self._journal, self._secrets, Head(), idempotency_key())
        recalled = await record.read("recalled")
        if recalled is None:
            with call_span("memory_get_messages", request.conversation.memory, _attributes(request.conversation)):
                messages = await self._read(request)
            if not messages:
                return RecallResult(thread=thread)
            redacted = [await self._secrets.redact_message(message) for message in with_results(messages)]
            redacted = await self._journal.redacted(redacted)  # as in the copy with which they are compared
            question = (await self._journal.row(thread.question)).message
            copies = Copies(self._journal)
            row = await copies.add_question(request.conversation, redacted, question, idempotency_key())
            await record.write("recalled", f"{len(messages)} {row.id}")
            recalled = await record.read("recalled")  # that of the first attempt, if several were made at once
            assert recalled
        known, _, row_id = recalled.partition(" ")
        row = await self._journal.row(row_id)
        return RecallResult(thread=thread.asking(row.head), before=row.before, known=int(known))

    @activity.defn(name="remember")
    async def remember(self, request: RememberRequest) -> RememberResult:
        """Adds the items after those that other queries have added; a retry adds nothing twice.

        That is true of another attempt, and of a run that retries a failed one: it adds what is new.
        """
        request = request.with_items(await self._new_items(request))
        if not request.items:
            return RememberResult()
        if request.conversation.remote:
            with call_span("memory_add_messages", request.conversation.memory, _attributes(request.conversation)):
                await self._add_remotely(request, idempotency_key())
        else:
            conversations = Conversations(self._journal)
            await conversations.add(request.conversation, request.before, request.items, idempotency_key())
        return RememberResult()

    async def _new_items(self, request: RememberRequest) -> Sequence[ConversationItem]:
        """The items without the steps that the failed run has added: in the same rows, or in copies."""
        if not request.added:
            return request.items
        added: dict[str, str] = {}
        for place in request.added:
            added |= {
                step[-1].id: _content(step) for step in await self._steps(RowRange(after=request.before, to=place))
            }
        parts = [await self._steps(item) if isinstance(item, RowRange) else item for item in request.items]
        shared = {step[-1].id for part in parts if isinstance(part, list) for step in part}
        copied = Counter(content for row_id, content in added.items() if row_id not in shared)
        new: list[ConversationItem] = []
        for part in parts:
            if not isinstance(part, list):
                new.append(part)
                continue
            for step in part:
                if step[-1].id in added:
                    continue
                copied.subtract([content := _content(step)])
                if copied[content] < 0:
                    new += [RowRange(after=row.before, to=row.head) for row in step if row.message.summarizes is None]
        return new

    async def _steps(self, part: RowRange) -> list[list[Row]]:
        """The rows of a range in steps: a message alone, or with the results of its tool calls, which models read only
        together."""
        steps: list[list[Row]] = []
        for row in await self._journal.read(part.to, lambda row: row.parent == part.after.id):
            if row.message.role == "tool" and steps:
                steps[-1].append(row)
            else:
                steps.append([row])
        return steps

    async def _read(self, request: RecallRequest) -> list[Message]:
        """The messages of the conversation, from the Memory's service."""
        conversation = request.conversation
        values = await ValueResolver.of(self._journal, request.thread, self._secrets)
        return await self._memory.read(find_memory(values.catalog, conversation), values, conversation)

    async def _add_remotely(self, request: RememberRequest, key: str) -> None:
        """Sends the messages, unless an earlier attempt has sent them and the service has stored them.

        Summaries are not sent: other clients of the service would read them as messages.
        """
        conversation = request.conversation
        before = request.before
        head = await self._journal.append(before, request.items, key)
        rows = await self._journal.read(head, lambda row: row.parent == before.id)
        spoken = [row.message for row in rows if row.message.summarizes is None]
        thread = Thread(catalog=request.catalog, question="", head=head)
        values = await ValueResolver.of(self._journal, thread, self._secrets)
        memory = find_memory(values.catalog, conversation)
        async with self._journal.leases.hold(key) as lease:
            is_stored = lease.is_answered
            if lease.was_sent and not is_stored:
                is_stored = contains(await self._memory.read(memory, values, conversation), spoken, request.known)
            if not is_stored:
                await self._memory.add(lease, memory, values, conversation, spoken, workflow_id())
        await Copies(self._journal).extend(conversation, before, head)
