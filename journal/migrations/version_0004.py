"""Version 4: the runs that wait for a Quota, to tell them when it has changed."""

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0004"
down_revision = "0003"


def upgrade(op: Operations) -> None:
    """Adds the table."""
    op.create_table(
        "baton_quota_waits",
        sa.Column("run", sa.String(255), primary_key=True),
        sa.Column("quotas", sa.String(64), primary_key=True),
        sa.Column("temporal_namespace", sa.String(255), nullable=False),
        sa.Column("task_queue", sa.Text, nullable=False),
        sa.Column("workflow", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("until", sa.BigInteger, nullable=False),
        sa.Column("told", sa.String(64), nullable=False),
    )
    op.create_index("baton_quota_waits_run", "baton_quota_waits", [sa.text("substr(run, 1, 36)")])
    op.create_index("baton_quota_waits_tenant", "baton_quota_waits", ["tenant"])
