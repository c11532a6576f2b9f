"""Version 7: the OAuth tokens that workers have refreshed."""

import sqlalchemy as sa
from alembic.operations import Operations

revision, down_revision = "0007", "0006"


def upgrade(op: Operations) -> None:
    """Adds the table."""
    op.create_table(
        "baton_tokens",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("token", sa.Text, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("leased_until", "changed")),
    )
