"""Version 5: what tells which runs a prune or an expired query may delete."""

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0005"
down_revision = "0004"

INDEXES = {"baton_conversations_run": "baton_conversations (substr(head, 1, 36))"}


def upgrade(op: Operations) -> None:
    """Adds the Temporal namespace of the runs that have pinned a catalog."""
    op.add_column("baton_uses", sa.Column("temporal_namespace", sa.String(255)))
