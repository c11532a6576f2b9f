"""What has been said, for good? Rows that are written once, each hanging on the row before it."""

from activities.journal.journal import Journal
from activities.journal.store import Database

__all__ = ["Database", "Journal"]
