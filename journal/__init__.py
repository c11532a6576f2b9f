"""The journal: the database of all messages, in immutable rows that point to their predecessors."""
