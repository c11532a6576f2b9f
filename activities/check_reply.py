"""The activity ``check_reply``: checks a person's reply against the JSON Schema that it has to fit."""

import json

from temporalio import activity

from ..conversation.contracts.replies import CheckReplyRequest, CheckReplyResult
from ..conversation.failure import MAX_ERROR_TEXT
from ..conversation.text import truncate
from ..resources.base import JsonObject
from .context.lookup import find_team
from .context.schema_errors import schema_errors
from .journal.journal import Journal


class CheckReply:
    """The activity ``check_reply``."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @activity.defn(name="check_reply")
    async def check_reply(self, request: CheckReplyRequest) -> CheckReplyResult:
        """What is wrong with a reply: it has to be JSON, and to fit the schema."""
        schema = await self._schema(request)
        return CheckReplyResult(wrong=await _wrong(request.text, schema) if schema is not None else None)

    async def _schema(self, request: CheckReplyRequest) -> JsonObject | None:
        if request.team is None:
            return request.asked
        team = find_team(await self._journal.catalog(request.thread.catalog), request.team)
        return next((m.output_schema for m in team.spec.members if m.name_in_team == request.member), None)


async def _wrong(text: str, schema: JsonObject) -> str | None:
    try:
        errors = await schema_errors(json.loads(text), schema)
    except ValueError as error:
        return f"is not JSON: {error}"
    except RecursionError:
        return "is nested too deeply"
    return truncate(f"doesn't fit its schema: {'; '.join(errors)}", MAX_ERROR_TEXT) if errors else None
