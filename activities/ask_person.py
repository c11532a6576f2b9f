"""The activity ``ask_person``: what a member that is a person gets to read."""

import json
from collections.abc import Iterator

from temporalio import activity

from ..conversation.contracts.replies import AskPersonRequest, AskPersonResult
from ..conversation.errors import UnknownResource
from ..conversation.messages.message import Message
from ..conversation.text import truncate
from ..resources.member import Member
from .context.lookup import find_team
from .journal.journal import Journal
from .process.secrets import SecretStore

MAX_SAID = 2_000
"""Bytes of the last message, which a person reads below the question; ``baton transcript`` shows all."""

MAX_SCHEMA = 2_000
"""Bytes of the schema of a reply."""


class AskPerson:
    """The activity ``ask_person``."""

    def __init__(self, journal: Journal, secrets: SecretStore) -> None:
        self._journal, self._secrets = journal, secrets

    @activity.defn(name="ask_person")
    async def ask_person(self, request: AskPersonRequest) -> AskPersonResult:
        """The member's prompt, the schema of the reply, and what was said last."""
        team = find_team(await self._journal.catalog(request.thread.catalog), request.team)
        member = next((each for each in team.spec.members if each.name_in_team == request.member), None)
        if member is None:
            raise UnknownResource(f"{team.id} has no member {request.member}")
        last = (await self._journal.row(request.thread.head.id)).message
        return AskPersonResult(question=self._secrets.redact("\n\n".join(_parts(member, last))))


def _parts(member: Member, last: Message) -> Iterator[str]:
    yield member.prompt or "It is your turn."
    if member.stance:
        yield f"You argue for: {member.stance}"
    if member.output_schema is not None:
        yield f"Reply with JSON that fits this schema: {truncate(json.dumps(member.output_schema), MAX_SCHEMA)}"
    if last.content:
        yield f"{last.name or last.role}: {truncate(last.content, MAX_SAID)}"
