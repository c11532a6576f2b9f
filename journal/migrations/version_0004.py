"""Version 4: the identity of the journal, and what it is tied to."""

import uuid

import sqlalchemy as sa
from alembic.operations import Operations

revision, down_revision = "0004", "0003"


def upgrade(op: Operations) -> None:
    """Adds the table, with a random id for this journal."""
    names = op.create_table(
        "baton_identity",
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("value", sa.String(255), nullable=False),
    )
    op.bulk_insert(names, [{"name": "id", "value": uuid.uuid4().hex[:16]}])
