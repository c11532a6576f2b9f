"""The commands ``sessions``: list, show and delete the conversations in the journal, of one Temporal namespace."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from .options import Output, OutputFormat
from .terminal import dump, print_message, print_result, print_rows

if TYPE_CHECKING:
    from pydantic import JsonValue

    from ...resources.base import JsonObject

app = typer.Typer()
sessions = typer.Typer(no_args_is_help=True, help="List, show and delete the conversations in the journal.")
app.add_typer(sessions, name="sessions")

Conversation = Annotated[str, typer.Argument(metavar="CONVERSATION", help="The conversation's id.")]
Namespace = Annotated[str, typer.Option("-n", "--namespace", help="The namespace of its queries, or of its Memory.")]
MemoryName = Annotated[str, typer.Option("--memory", help="The Memory named by its queries.")]

COLUMNS = ("CONVERSATION", "NAMESPACE", "MEMORY", "MESSAGES", "LAST USED")


@sessions.command("list")
def list_sessions(
    limit: Annotated[int, typer.Option("--limit", min=1, help="The maximum number of conversations.")] = 20,
    output: Output = OutputFormat.text,
) -> None:
    """List the most recently used conversations. Needs the workers' BATON_JOURNAL_URL."""
    import asyncio
    from datetime import UTC, datetime

    from ...contracts.text import format_time
    from ..operations.conversations import list_conversations
    from ..server.connection import temporal_namespace
    from ..text import format_age

    rows: list[tuple[tuple[str, ...], JsonValue]] = []
    for record in asyncio.run(list_conversations(temporal_namespace(), limit)):
        last_used = datetime.fromtimestamp(record.changed, UTC)
        value: JsonObject = {
            "id": record.id,
            "namespace": record.namespace,
            "memory": record.memory,
            "messages": record.depth,
            "created": format_time(datetime.fromtimestamp(record.created, UTC)),
            "lastUsed": format_time(last_used),
        }
        rows.append(((record.id, record.namespace, record.memory, str(record.depth), format_age(last_used)), value))
    print_rows(COLUMNS, rows, output, "No conversations found.")


@sessions.command()
def show(
    conversation: Conversation,
    namespace: Namespace = "default",
    memory: MemoryName = "",
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="The maximum number of messages, counted from the last one.")
    ] = 50,
    output: Output = OutputFormat.text,
) -> None:
    """Print the latest messages of a conversation."""
    import asyncio

    from ...contracts.plan import ConversationPlan
    from ..operations.conversations import read_conversation
    from ..server.connection import temporal_namespace

    plan = ConversationPlan(id=conversation, namespace=namespace, memory=memory)
    messages = asyncio.run(read_conversation(temporal_namespace(), plan, limit))
    if messages is None:
        raise UsageError(_unknown(conversation))
    if output is OutputFormat.text:
        texts = [f"{message.name or message.role}: {message.content}" for message in messages if message.content]
        print_result("\n\n".join(texts))
    else:
        print_result(dump([json.loads(message.model_dump_json(exclude_none=True)) for message in messages], output))


@sessions.command()
def delete(conversation: Conversation, namespace: Namespace = "default", memory: MemoryName = "") -> None:
    """Delete a conversation; after the retention of its runs, 'baton prune' deletes its messages."""
    import asyncio

    from ...contracts.plan import ConversationPlan
    from ..operations.conversations import delete_conversation
    from ..server.connection import temporal_namespace

    plan = ConversationPlan(id=conversation, namespace=namespace, memory=memory)
    if not asyncio.run(delete_conversation(temporal_namespace(), plan)):
        raise UsageError(_unknown(conversation))
    print_message(f"Conversation {conversation} deleted; 'baton prune' deletes its messages.")


def _unknown(conversation: str) -> str:
    return f"there is no conversation '{conversation}' in the journal: list them with baton sessions list"
