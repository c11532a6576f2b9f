"""Version 3: the accounts of budgets, and what each call is charged to them."""

import sqlalchemy as sa
from alembic.operations import Operations

revision, down_revision = "0003", "0002"


def upgrade(op: Operations) -> None:
    """Adds both tables."""
    amounts = ("tokens", "cost", "model_calls", "tool_calls")
    op.create_table(
        "baton_accounts",
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("began", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in amounts),
    )
    op.create_table(
        "baton_charges",
        sa.Column("call", sa.String(255), primary_key=True),
        sa.Column("account", sa.String(255), primary_key=True),
        sa.Column("settled", sa.Boolean, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in amounts),
    )
