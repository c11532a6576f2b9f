"""The activities of people: ``ask_person``, ``check_reply`` and ``check_identity``."""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from pydantic import JsonValue
from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from ..contracts.decisions import (
    MAX_SCHEMA,
    AskPersonRequest,
    AskPersonResult,
    CheckIdentityRequest,
    CheckIdentityResult,
    CheckReplyRequest,
    CheckReplyResult,
)
from ..contracts.errors import MAX_ERROR_TEXT, UnknownResource
from ..contracts.identity import IDENTITY_KEY, REQUESTER, START, IdentityKeys
from ..contracts.inputs import ForkRequest
from ..contracts.message import Message, latest_within
from ..contracts.text import byte_size, parse_json, truncate
from ..contracts.turn import Thread
from ..journal.journal import Journal
from ..journal.rows import Row
from ..resources.base import JsonObject
from ..resources.member import Member
from ..resources.strategies import OWN_WORKFLOWS
from ..temporal.activity import own_client
from ..temporal.executions import execution_chain, first_run_id, memo_of
from .context.context_window import past_rows
from .context.lookup import find_team
from .context.output_schema import schema_errors
from .context.value_resolver import ValueResolver
from .panel import SpeakerContext, indented
from .runtime.secrets import SecretStore

MAX_SAID = 2_000
"""Bytes of the run's question, and of the latest messages, that are shown below the question to a person.

``baton transcript`` shows all of them.
"""

MAX_SCHEMA_IN_TEXT = 2_000
"""Bytes of the schema of a reply that are written in the question, for those who see no form."""


class PeopleActivities:
    """The activities of members who are people."""

    def __init__(self, journal: Journal, secrets: SecretStore) -> None:
        self._journal = journal
        self._secrets = secrets

    @activity.defn(name="ask_person")
    async def ask_person(self, request: AskPersonRequest) -> AskPersonResult:
        """The question to a person: the member's prompt, the schema of the reply, and what the reply is about."""
        team = find_team(await self._journal.catalog(request.thread.catalog), request.team)
        member = next((member for member in team.spec.members if member.name_in_team == request.member), None)
        if member is None:
            raise UnknownResource(f"{team.id} has no member {request.member}")
        parts = [*_parts(member), await self._said(request)]
        schema = member.output_schema
        is_shown = schema is not None and byte_size(json.dumps(schema)) <= MAX_SCHEMA
        return AskPersonResult(
            question=self._secrets.redact("\n\n".join(parts)),
            output_schema=schema if is_shown else None,
            approvers=member.approvers,
        ).without_defaults

    @activity.defn(name="check_reply")
    async def check_reply(self, request: CheckReplyRequest) -> CheckReplyResult:
        """Why a reply is invalid: if there is a schema, it must be JSON that matches it."""
        schema = await self._schema(request)
        return CheckReplyResult(wrong=await _wrong(request.text, schema) if schema is not None else None)

    @activity.defn(name="check_identity")
    async def check_identity(self, request: CheckIdentityRequest) -> CheckIdentityResult:
        """Whether a gateway has signed that this person decides this, and why the person may not, if so.

        Without a key nobody is verified. A signature that is not valid is always refused.
        """
        keys = IdentityKeys.of({IDENTITY_KEY: self._secrets.environment(IDENTITY_KEY) or ""})
        name = request.identity.name
        if not keys.keys:
            refusal = f"{name} can't be verified: the workers have no {IDENTITY_KEY}" if request.required else None
            return CheckIdentityResult(refusal=refusal)
        if not keys.is_of_decision(request.identity, request.place):
            refusal = f"{name} can't be verified: no gateway with a {IDENTITY_KEY} of the workers has signed this"
            return CheckIdentityResult(refusal=refusal)
        if request.not_requester:
            requesters = [each async for each in _requesters(own_client(), keys, request.root)]
            may_have_started = None in requesters or name in requesters
            if may_have_started and request.requester_may:
                return CheckIdentityResult(verified=True, as_requester=True)
            if None in requesters:
                refusal = (
                    "it is not verified who started the run, so nobody is known to be another person: start it "
                    f"through a gateway that has {IDENTITY_KEY}"
                )
                return CheckIdentityResult(refusal=refusal)
            if may_have_started:
                return CheckIdentityResult(refusal=f"{name} started the run: another person has to decide")
        return CheckIdentityResult(verified=True)

    async def _said(self, request: AskPersonRequest) -> str:
        """What an agent in the place of the person would read, as far as it fits."""
        thread = request.thread
        if request.brief is None:
            return await self._conversation(thread, request.waiting)
        values = await ValueResolver.of(self._journal, thread, self._secrets)
        rows = await self._journal.read(thread.head)
        return SpeakerContext(request.brief, values, rows, thread.question).for_person(MAX_SAID)

    async def _conversation(self, thread: Thread, waiting: Sequence[Message]) -> str:
        """The run's question at its place among the latest messages, of which some may be ``waiting`` to join them."""
        question = await self._journal.row(thread.question)
        rows = await self._journal.read(thread.head, _is_enough(question))
        told = [row for row in past_rows(rows, question.id, thread.head.depth) if _is_told(row.message)]
        latest = latest_within((*(row.message for row in told), *waiting), MAX_SAID)
        earlier = sum(row.depth < question.depth for row in told[len(told) + len(waiting) - len(latest) :])
        messages = (*latest[:earlier], question.message, *latest[earlier:])
        entries = (f"{each.name or each.role}: {truncate(each.content, MAX_SAID)}" for each in messages)
        return "\n\n".join(map(indented, entries))

    async def _schema(self, request: CheckReplyRequest) -> JsonObject | None:
        if request.team is None:
            return request.reply_schema
        team = find_team(await self._journal.catalog(request.thread.catalog), request.team)
        return next((m.output_schema for m in team.spec.members if m.name_in_team == request.member), None)


async def _requesters(client: Client, keys: IdentityKeys, root: str) -> AsyncIterator[str | None]:
    """Who has started a root run, and each run that it is a fork of; None if that is not verified.

    A fork goes on with what another person has asked. A retry has the requester of its first attempt, whoever it is
    that retries it.
    """
    run = root
    run_id = await first_run_id(client.get_workflow_handle(root))
    while True:
        try:
            (run_id, started), *_ = await execution_chain(client, run, run_id)
            description = await client.get_workflow_handle(run, run_id=run_id).describe()
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            yield None  # Temporal has deleted it
            return
        if description.workflow_type not in OWN_WORKFLOWS:
            yield None  # an application's workflow has started the team, for whomever
            return
        (run_input,) = await client.data_converter.decode(started.input.payloads, [dict[str, JsonValue]])
        if isinstance(retried := run_input.get("retries"), str):
            run_id = retried
            continue
        signed = (await memo_of(description)).get(REQUESTER)
        yield keys.who_acts(signed, client.namespace, run, START, description.start_time)
        if not run_input.get("forks"):
            return
        fork = ForkRequest.model_validate(run_input["forks"]).fork
        run, run_id = fork.run, fork.run_id


def _is_told(message: Message) -> bool:
    """Whether a person is shown a message: one with a text, which is not the result of a tool but of a transfer."""
    return bool(message.content) and (message.role != "tool" or message.handoff is not None)


def _is_enough(question: Row) -> Callable[[Row], bool]:
    """A predicate for reading backwards: whether the messages from this row on are more than a person is shown."""
    size = 0

    def enough(row: Row) -> bool:
        nonlocal size
        size += row.message.byte_size if row.id != question.id and _is_told(row.message) else 0
        return size > MAX_SAID

    return enough


def _parts(member: Member) -> Iterator[str]:
    yield member.prompt or "It is your turn."
    if member.stance:
        yield f"You argue for: {member.stance}"
    if member.output_schema is not None:
        schema = truncate(json.dumps(member.output_schema), MAX_SCHEMA_IN_TEXT)
        yield f"Reply with JSON that matches this schema: {schema}"


async def _wrong(text: str, schema: JsonObject) -> str | None:
    try:
        errors = await schema_errors(parse_json(text, constants=False), schema)
    except ValueError as error:
        return f"is not JSON: {error}"
    except RecursionError:
        return "is nested too deeply"
    return truncate(f"doesn't match its schema: {'; '.join(errors)}", MAX_ERROR_TEXT) if errors else None
