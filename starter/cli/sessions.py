"""The commands ``sessions``: lists, shows and deletes the conversations that the journal keeps."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from .options import Output, OutputFormat
from .rows import print_rows
from .terminal import print_message, print_result

if TYPE_CHECKING:
    from pydantic import JsonValue

    from ...resources.base import JsonObject

app = typer.Typer()
sessions = typer.Typer(no_args_is_help=True, help="Conversations that queries go on with: list, show, delete.")
app.add_typer(sessions, name="sessions")

Conversation = Annotated[str, typer.Argument(metavar="CONVERSATION", help="The conversation's id.")]
Namespace = Annotated[str, typer.Option("-n", "--namespace", help="The namespace of its queries or its Memory.")]
MemoryName = Annotated[str, typer.Option("--memory", help="The Memory that its queries name.")]

COLUMNS = ("CONVERSATION", "NAMESPACE", "MEMORY", "MESSAGES", "LAST USED")


@sessions.command("list")
def list_sessions(
    limit: Annotated[int, typer.Option("--limit", min=1, help="The number of conversations.")] = 20,
    output: Output = OutputFormat.text,
) -> None:
    """Lists the conversations that were used last. Reads the journal, as a worker does."""
    import asyncio
    from datetime import UTC, datetime

    from ...conversation.contracts.status import format_time
    from ..journal.conversations import list_conversations
    from ..text.units import format_age

    rows: list[tuple[tuple[str, ...], JsonValue]] = []
    for each in asyncio.run(list_conversations(limit)):
        created, changed = (datetime.fromtimestamp(seconds, UTC) for seconds in (each.created, each.changed))
        named: JsonObject = {"id": each.id, "namespace": each.namespace, "memory": each.memory, "messages": each.depth}
        times: JsonObject = {"created": format_time(created), "lastUsed": format_time(changed)}
        cells = (each.id, each.namespace, each.memory, str(each.depth), format_age(changed))
        rows.append((cells, {**named, **times}))
    print_rows(COLUMNS, rows, output, "there is no conversation")


@sessions.command()
def show(
    conversation: Conversation,
    namespace: Namespace = "default",
    memory: MemoryName = "",
    limit: Annotated[int, typer.Option("--limit", min=1, help="The number of messages, from the last one back.")] = 50,
    output: Output = OutputFormat.text,
) -> None:
    """Prints the last messages of a conversation."""
    import asyncio

    from ...conversation.contracts.conversation_plan import ConversationPlan
    from ..journal.conversations import read_conversation
    from .formats import dump

    plan = ConversationPlan(id=conversation, namespace=namespace, memory=memory)
    found = asyncio.run(read_conversation(plan, limit))
    if found is None:
        raise UsageError(_unknown(conversation))
    if output is OutputFormat.text:
        print_result("\n\n".join(f"{each.name or each.role}: {each.content}" for each in found if each.content))
    else:
        print_result(dump([json.loads(each.model_dump_json(exclude_none=True)) for each in found], output))


@sessions.command()
def delete(conversation: Conversation, namespace: Namespace = "default", memory: MemoryName = "") -> None:
    """Deletes a conversation; its messages are deleted by the next ``baton prune`` after the runs' retention."""
    import asyncio

    from ...conversation.contracts.conversation_plan import ConversationPlan
    from ..journal.conversations import delete_conversation

    plan = ConversationPlan(id=conversation, namespace=namespace, memory=memory)
    if not asyncio.run(delete_conversation(plan)):
        raise UsageError(_unknown(conversation))
    print_message(f"conversation {conversation} is deleted; 'baton prune' deletes its messages")


def _unknown(conversation: str) -> str:
    return f"there is no conversation '{conversation}' in the journal: list them with baton sessions list"
