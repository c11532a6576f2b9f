"""Finds the Memories that queries name and that no manifest describes."""

from collections.abc import Iterator

from .catalog import Catalog
from .query import Query
from .validation import Violation


def missing_memories(catalog: Catalog) -> Iterator[Violation]:
    """The queries whose conversation is kept by the journal, although they name a Memory."""
    for query in (each for each in catalog.manifests if isinstance(each, Query) and each.spec.memory):
        if not catalog.find(reference := query.memory_reference()):
            text = f"{reference} is not in the files: unless the worker has it, the journal keeps the conversation"
            yield Violation(query, reference.path, text)
