"""Finds a task in the list of its server, by the message that it was begun with, and cancels one."""

from a2a.client import Client
from a2a.types import CancelTaskRequest, ListTasksRequest, Task
from a2a.utils.errors import TaskNotCancelableError, TaskNotFoundError

from ....conversation.errors import AgentUnavailable
from .errors import error_of

MAX_PAGES = 10
"""Pages of tasks that are read."""


async def find_task(client: Client, message_id: str, context: str, server: str) -> Task | None:
    """The task of a message, among those of a context or, without one, among all; None if the server can't say.

    A list leaves out artifacts, so the task itself is still to be asked for. Raises AgentUnavailable.
    """
    request = ListTasksRequest(page_size=100, history_length=100, context_id=context)
    try:
        for _ in range(MAX_PAGES):
            page = await client.list_tasks(request)
            for task in page.tasks:
                if any(each.message_id == message_id for each in task.history):
                    return task
            if not page.next_page_token:
                return None
            request.page_token = page.next_page_token
    except Exception as error:
        meaning = error_of(error, server)
        if isinstance(meaning, AgentUnavailable):
            raise meaning from None
    return None


async def cancel_task(client: Client, task: str, server: str) -> bool:
    """Asks the server to cancel a task; False if that has ended. Raises an error of ``conversation.errors``."""
    try:
        await client.cancel_task(CancelTaskRequest(id=task))
    except (TaskNotCancelableError, TaskNotFoundError):
        return False
    except Exception as error:
        raise error_of(error, server) from None
    return True
