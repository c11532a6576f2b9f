"""Version 5: what people have granted to accounts of budgets."""

import sqlalchemy as sa
from alembic.operations import Operations

revision, down_revision = "0005", "0004"


def upgrade(op: Operations) -> None:
    """Adds the table."""
    op.create_table(
        "baton_grants",
        sa.Column("account", sa.String(255), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("until", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("tokens", "cost", "model_calls", "tool_calls")),
    )
