"""The name of a journal, as a run's history notes it."""

from ...resources.base import JsonModel


class JournalName(JsonModel):
    """A journal: its random id, and its address, without a password, as a worker knows it."""

    id: str
    place: str
