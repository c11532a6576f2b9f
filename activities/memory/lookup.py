"""Finds the Memory of a conversation in the catalog of a run."""

from ...conversation.contracts.conversation_plan import ConversationPlan
from ...conversation.errors import UnknownResource
from ...resources.catalog import Catalog
from ...resources.memory import Memory


def find_memory(catalog: Catalog, conversation: ConversationPlan) -> Memory:
    """The Memory that keeps a conversation. Raises UnknownResource if the catalog has not got it."""
    memory_id = f"Memory/{conversation.namespace}/{conversation.memory}"
    if isinstance(found := catalog.by_id(memory_id), Memory):
        return found
    raise UnknownResource(f"the run's catalog has no {memory_id}")
