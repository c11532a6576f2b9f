"""Images and files of messages: the journal takes in their bytes, and a query is refused that its models can't read."""

from collections.abc import Iterable, Iterator, Sequence

from ..contracts.attachment import Attachment
from ..contracts.errors import InvalidInput
from ..contracts.message import Message
from ..journal.journal import Journal
from ..resources.a2a_server import A2AServer
from ..resources.agent import Agent
from ..resources.catalog import Catalog, Resource
from ..resources.content import ChatMessage
from ..resources.model import Model
from ..resources.query import Query
from ..resources.team import Team
from ..resources.tool import Tool
from .context.lookup import find_executor
from .context.metering import ChainedModel, model_chain
from .model.accepted import ACCEPTED
from .model.connection import ENVIRONMENT

MAX_SENT = 20_000_000
"""Bytes of images and files in one request to a model: of a longer conversation, the latest ones."""


async def attachments_of(journal: Journal, run: str, message: ChatMessage) -> tuple[Attachment, ...]:
    """The attachments of a message of a query's input, whose bytes are stored until the run is pruned."""
    parts = message.attached
    stored = iter(await journal.attach(run, [part.data.content for part in parts if part.data]))
    return tuple(Attachment.of(part, next(stored) if part.data else None) for part in parts)


async def message_of(journal: Journal, run: str, message: ChatMessage) -> Message:
    """A message of a query's input before its question."""
    attachments = await attachments_of(journal, run, message)
    return Message(role=message.role, content=message.text, name=message.name, attachments=attachments).without_defaults


def check_accepted(query: Query, catalog: Catalog, attachments: Sequence[Attachment]) -> None:
    """Raises InvalidInput if a model or an agent that reads the query's messages can't take one of the attachments.

    Those of the question must all be sent together; of those of earlier messages, ``contents_for`` omits some.
    """
    earlier = len(attachments) - (len(query.spec.messages[-1].attached) if attachments else 0)
    for reference in catalog.targets(query) if attachments else ():
        for reader in _readers(catalog.find(reference), catalog, set()):
            for number, attachment in enumerate(attachments):
                if why := _refusal(reader, attachment, attachments[earlier:number], catalog):
                    raise InvalidInput(f"{query.id}: spec.input: {attachment.stand_in}: {why}")


def _readers(resource: Resource | None, catalog: Catalog, seen: set[str]) -> Iterator[Resource]:
    """The agents, models and tools that answer a question to a resource."""
    if resource is None or resource.id in seen:
        return
    seen.add(resource.id)
    if not isinstance(resource, Team):
        yield resource
        return
    members = [*resource.members()]
    holders = [reference for _, reference in resource.role_holders()]
    has_default_speaker = None in holders or any(member.kinds and not catalog.find(member) for member in members)
    default = [resource.default_model()] if resource.spec.is_panel and has_default_speaker else []
    for reference in (*members, *filter(None, holders), *default):
        if reference.kinds:  # else a person or a function
            yield from _readers(catalog.find(reference), catalog, seen)


def _refusal(reader: Resource, attachment: Attachment, beside: Sequence[Attachment], catalog: Catalog) -> str | None:
    if isinstance(reader, Tool):
        return f"{reader.id} takes only text"
    if not isinstance(reader, Agent | Model):
        return None
    if isinstance(reader, Agent) and (executor := find_executor(reader, catalog)):
        if isinstance(executor, A2AServer):
            return None
        return f"{executor.id}, which executes {reader.id}, takes only text"
    for model in model_chain(reader, catalog):
        if why := ACCEPTED[_type_of(model)].refusal(attachment, beside):
            name = model.manifest.id if model.manifest else f"the model {model.name}"
            return f"{name} ({_type_of(model)}) can't take it: {why}"
    return None


def _type_of(model: ChainedModel) -> str:
    return model.manifest.spec.server if model.manifest else ENVIRONMENT


async def contents_for(
    journal: Journal, model: ChainedModel, messages: Iterable[Message]
) -> tuple[list[Message], dict[str, bytes]]:
    """The messages with the attachments that a model is sent, and the stored contents of these, by their ids.

    The text alone stands for others: those that it can't take, of earlier queries, of tools, or with a fallback; and
    the earliest ones if all are too large, or too many, for a request.
    """
    sent: list[Message] = []
    later: list[Attachment] = []
    contents: dict[str, bytes] = {}
    size = 0
    accepted = ACCEPTED[_type_of(model)]
    for message in reversed([*messages]):
        kept: list[Attachment] = []
        for attachment in reversed(message.attachments if accepted.in_results or message.role != "tool" else ()):
            size += attachment.size
            if size <= MAX_SENT and not accepted.refusal(attachment, later):
                kept.append(attachment)
                later.append(attachment)
                if attachment.stored:
                    contents[attachment.stored] = await journal.attachment(attachment.stored)
        sent.append(message.with_attachments(kept[::-1]) if message.attachments else message)
    return sent[::-1], contents
