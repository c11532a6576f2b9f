"""What a speaker gets to read: the conversation, or in a panel what its brief is about."""

from ...conversation.contracts.requests import AskModelRequest
from ...conversation.messages.message import Head, Message
from ...resources.agent import Agent
from ...resources.model import Model
from ..context.context_window import model_messages, window_end
from ..context.skills import speaker_prompt
from ..context.untrusted_content import fenced, with_changed_arguments
from ..context.value_resolver import ValueResolver
from ..journal.journal import Journal
from ..process.functions import FunctionRegistry
from .speaker_context import SpeakerContext


async def speaker_messages(
    request: AskModelRequest,
    head: Head,
    speaker: Agent | Model,
    values: ValueResolver,
    journal: Journal,
    functions: FunctionRegistry,
) -> list[Message]:
    """The messages for a speaker up to ``head``, with its system prompt first if it has one."""
    thread, begun = request.thread, request.begun
    agent = speaker if isinstance(speaker, Agent) else None
    if agent and request.brief:
        rows = await journal.read(head)
        panel = SpeakerContext.of(request.brief, values, rows[:begun], thread.question)
        messages = await panel.messages(agent, request.speaker, values, functions)
        messages += [row.message for row in rows[begun:]]
    else:
        rows = await journal.read(head, window_end(thread.question, begun, request.window))
        question = await journal.row(thread.question)
        prompt = speaker_prompt(agent, values) if agent else None
        messages = model_messages(prompt, rows, question, begun, request.window)
    return [with_changed_arguments(fenced(values.with_secrets(each))) for each in messages]
