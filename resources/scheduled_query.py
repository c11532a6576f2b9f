"""Finds the query that a Schedule starts, and the manifests that a run of it needs."""

from dataclasses import replace

from .catalog import Catalog
from .documents import Document
from .loader import Loaded
from .problems import ManifestError
from .query import Query
from .schedule import TEMPLATE, Schedule


def scheduled_query(loaded: Loaded, schedule: Schedule, *, elsewhere: bool) -> tuple[Query, Catalog]:
    """The query of a Schedule, and all manifests that it needs, of the same files.

    There are none for a query that only the store has: its runs take it from there, as it is when they begin. With
    ``elsewhere``, Secrets may be on a worker on another machine. Raises ManifestError, as ``Loaded.needed_by``.
    """
    inline = schedule.inline_query()
    if inline is None:
        loaded.needed_by(schedule, elsewhere=elsewhere)  # raises if there is none
        (reference,) = schedule.references
        found = loaded.catalog.find(reference) or loaded.stored.find(reference)
        assert isinstance(found, Query)
        is_stored = loaded.catalog.by_id(found.id) is None
        return found, Catalog() if is_stored else loaded.needed_by(found, elsewhere=elsewhere)
    if loaded.catalog.by_id(inline.id):
        text = f"{inline.id} is in the files, too, and a query in a Schedule has its name: give one another name"
        raise ManifestError([loaded.problem(schedule, ("metadata", "name"), text)])
    places = {**loaded.places, inline.id: _place(loaded.places[schedule.id])}
    known = Catalog(manifests=(*loaded.catalog.manifests, inline))
    return inline, replace(loaded, catalog=known, places=places).needed_by(inline, elsewhere=elsewhere)


def _place(document: Document) -> Document:
    """The part of a Schedule's document that is its query."""
    depth = len(TEMPLATE)
    lines = {path[depth:]: line for path, line in document.lines.items() if path[:depth] == TEMPLATE}
    return Document(document.file, None, lines)
