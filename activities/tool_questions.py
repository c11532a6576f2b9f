"""Questions with which a use of a tool ends: noted in the journal, for the use that goes on with the answer."""

from ..conversation.contracts.questions import Question
from ..conversation.contracts.tool_requests import UseToolRequest, UseToolResult
from ..conversation.errors import JournalLost
from ..conversation.messages.message import Message
from ..conversation.messages.person_decision import PersonDecision
from ..conversation.text import truncate
from ..resources.base import JsonModel, JsonObject
from .context.call_record import CallRecord
from .journal.journal import Journal
from .process.secrets import SecretStore
from .tool.tool import Answered, AsksPerson

MAX_QUESTION = 8_000
"""Bytes of a question."""


class AskedNote(JsonModel):
    """What a tool has asked, what it needs to go on (``state``), and the ``decision`` by which the call was allowed."""

    text: str
    reply_schema: JsonObject | None = None
    state: JsonObject
    decision: PersonDecision | None = None


class ToolQuestions:
    """Reads and writes the notes."""

    def __init__(self, journal: Journal, secrets: SecretStore) -> None:
        self._journal, self._secrets = journal, secrets

    async def asked(self, request: UseToolRequest, key: str) -> UseToolResult | None:
        """The question with which an earlier attempt of the use ``key`` has ended; None if there is none."""
        note = await self._read(request, key)
        return _result(request, note, key) if note else None

    async def ask(self, request: UseToolRequest, key: str, asks: AsksPerson) -> UseToolResult:
        """Notes what the use ``key`` asks."""
        text = truncate(await self._secrets.redact_long(asks.text), MAX_QUESTION)
        note = AskedNote(text=text, reply_schema=asks.reply_schema, state=asks.state, decision=request.decision)
        await self._record(request, key).write("asked", note.model_dump_json())
        return _result(request, note, key)

    async def allowed(self, request: UseToolRequest) -> UseToolRequest:
        """The request; if it goes on, with the decision by which the call was allowed when it began."""
        if request.answered is None:
            return request
        return request.model_copy(update={"decision": (await self._earlier(request)).decision})

    async def answered(self, request: UseToolRequest) -> Answered | None:
        """What the use goes on with, if an earlier one has asked."""
        if request.answered is None:
            return None
        return Answered((await self._earlier(request)).state, request.answered.decision)

    async def _earlier(self, request: UseToolRequest) -> AskedNote:
        record = request.answered.record if request.answered else ""
        if note := await self._read(request, record):
            return note
        raise JournalLost(f"the journal does not hold what was asked by {record}")

    async def _read(self, request: UseToolRequest, key: str) -> AskedNote | None:
        text = await self._record(request, key).read("asked")
        return AskedNote.model_validate_json(text) if text else None

    def _record(self, request: UseToolRequest, key: str) -> CallRecord:
        return CallRecord(self._journal, self._secrets, request.thread.head, key)


def _result(request: UseToolRequest, note: AskedNote, key: str) -> UseToolResult:
    number = request.answered.number + 1 if request.answered else 1
    question = Question(id=request.question_id(number), text=note.text, reply_schema=note.reply_schema, record=key)
    return UseToolResult(message=Message(role="tool"), head=request.thread.head, question=question)
