"""What has been said, for good? Rows that are written once, each hanging on the row before it."""

from .database import Database
from .journal import Journal

__all__ = ["Database", "Journal"]
