"""The activities of people: ``ask_person`` and ``check_reply``."""

import json
from collections.abc import Iterator

from temporalio import activity

from ..contracts.decisions import AskPersonRequest, AskPersonResult, CheckReplyRequest, CheckReplyResult
from ..contracts.errors import MAX_ERROR_TEXT, UnknownResource
from ..contracts.message import Message
from ..contracts.text import truncate
from ..journal.journal import Journal
from ..resources.base import JsonObject
from ..resources.member import Member
from .context.lookup import find_team
from .context.output_schema import schema_errors
from .runtime.secrets import SecretStore

MAX_SAID = 2_000
"""Bytes of the last message that are shown below the question; ``baton transcript`` shows the whole message."""

MAX_SCHEMA = 2_000
"""Bytes of the schema of a reply."""


class PeopleActivities:
    """The activities of members who are people."""

    def __init__(self, journal: Journal, secrets: SecretStore) -> None:
        self._journal = journal
        self._secrets = secrets

    @activity.defn(name="ask_person")
    async def ask_person(self, request: AskPersonRequest) -> AskPersonResult:
        """The question to a person: the member's prompt, the schema of the reply, and the last message."""
        team = find_team(await self._journal.catalog(request.thread.catalog), request.team)
        member = next((member for member in team.spec.members if member.name_in_team == request.member), None)
        if member is None:
            raise UnknownResource(f"{team.id} has no member {request.member}")
        last = (await self._journal.row(request.thread.head.id)).message
        return AskPersonResult(question=self._secrets.redact("\n\n".join(_parts(member, last))))

    @activity.defn(name="check_reply")
    async def check_reply(self, request: CheckReplyRequest) -> CheckReplyResult:
        """Why a reply is invalid: if there is a schema, it must be JSON that matches it."""
        schema = await self._schema(request)
        return CheckReplyResult(wrong=await _wrong(request.text, schema) if schema is not None else None)

    async def _schema(self, request: CheckReplyRequest) -> JsonObject | None:
        if request.team is None:
            return request.reply_schema
        team = find_team(await self._journal.catalog(request.thread.catalog), request.team)
        return next((m.output_schema for m in team.spec.members if m.name_in_team == request.member), None)


def _parts(member: Member, last: Message) -> Iterator[str]:
    yield member.prompt or "It is your turn."
    if member.stance:
        yield f"You argue for: {member.stance}"
    if member.output_schema is not None:
        yield f"Reply with JSON that matches this schema: {truncate(json.dumps(member.output_schema), MAX_SCHEMA)}"
    if last.content:
        yield f"{last.name or last.role}: {truncate(last.content, MAX_SAID)}"


async def _wrong(text: str, schema: JsonObject) -> str | None:
    try:
        errors = await schema_errors(json.loads(text), schema)
    except ValueError as error:
        return f"is not JSON: {error}"
    except RecursionError:
        return "is nested too deeply"
    return truncate(f"doesn't match its schema: {'; '.join(errors)}", MAX_ERROR_TEXT) if errors else None
