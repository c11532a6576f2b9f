"""Version 2: what operators of several teams need."""

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0002"
down_revision = "0001"


def upgrade(op: Operations) -> None:
    """Adds the tables."""
    op.create_table(
        "baton_audit",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", sa.String(255), nullable=False, unique=True),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("who", sa.String(255), nullable=False),
        sa.Column("verified", sa.Boolean, nullable=False),
        sa.Column("via", sa.String(32), nullable=False),
        sa.Column("client", sa.String(255), nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("namespace", sa.String(255), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("outcome", sa.String(32), nullable=False),
        sa.Column("detail", sa.String(255), nullable=False),
        sa.Column("previous", sa.String(64), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    op.create_table(
        "baton_erasures",
        sa.Column("temporal_namespace", sa.String(255), primary_key=True),
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("namespace", sa.String(255), primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("run", sa.String(255), primary_key=True),
    )
    op.add_column("baton_manifests", sa.Column("author", sa.String(255)))
    op.create_table(
        "baton_quota_accounts",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("quota", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("period", sa.String(16), nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("began", sa.BigInteger, nullable=False),
        sa.Column("ends", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("cost", sa.BigInteger, nullable=False),
        sa.Column("model_calls", sa.BigInteger, nullable=False),
        sa.Column("tool_calls", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "baton_quota_runs",
        sa.Column("quota", sa.String(64), primary_key=True),
        sa.Column("run", sa.String(255), primary_key=True),
        sa.Column("temporal_namespace", sa.String(255), nullable=False),
        sa.Column("workflow", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("manifest", sa.Text, nullable=False),
    )
    op.create_index("baton_quota_runs_run", "baton_quota_runs", [sa.text("substr(run, 1, 36)")])
    op.add_column("baton_uses", sa.Column("namespace", sa.String(255)))  # for retention by namespace
