"""Version 2: conversations that queries go on with."""

import sqlalchemy as sa
from alembic.operations import Operations

revision, down_revision = "0002", "0001"


def upgrade(op: Operations) -> None:
    """Adds the table of conversations."""
    op.create_table(
        "baton_conversations",
        sa.Column("namespace", sa.String(255), primary_key=True),
        sa.Column("memory", sa.String(255), primary_key=True),
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("head", sa.String(255), nullable=False),
        sa.Column("depth", sa.Integer, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("changed", sa.BigInteger, nullable=False),
    )
