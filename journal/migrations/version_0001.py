"""Version 1: conversations, catalogs, large values, leases, budgets, stored manifests, OAuth tokens, and keys."""

import uuid

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0001"
down_revision = None


def upgrade(op: Operations) -> None:
    """Creates all tables, and gives this journal a random id."""
    op.create_table("baton_schema", sa.Column("version", sa.Integer, primary_key=True))
    op.create_table(
        "baton_messages",
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("temporal_namespace", sa.String(255), nullable=False),
        sa.Column("parent", sa.String(255), nullable=False),
        sa.Column("depth", sa.Integer, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
    )
    op.create_table(
        "baton_catalogs",
        sa.Column("sha", sa.String(64), primary_key=True),
        sa.Column("catalog", sa.Text, nullable=False),
    )
    op.create_table(
        "baton_uses",
        sa.Column("run", sa.String(255), primary_key=True),
        sa.Column("sha", sa.String(64), primary_key=True),
    )
    op.create_table(
        "baton_bookmarks",
        sa.Column("temporal_namespace", sa.String(255), primary_key=True),
        sa.Column("session", sa.String(255), primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("begun", sa.Integer, nullable=False),
        sa.Column("head", sa.String(255), nullable=False),
        sa.Column("depth", sa.Integer, nullable=False),
    )
    op.create_table(
        "baton_conversations",
        sa.Column("temporal_namespace", sa.String(255), primary_key=True),
        sa.Column("namespace", sa.String(255), primary_key=True),
        sa.Column("memory", sa.String(255), primary_key=True),
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("head", sa.String(255), nullable=False),
        sa.Column("depth", sa.Integer, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("changed", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "baton_copies",
        sa.Column("temporal_namespace", sa.String(255), primary_key=True),
        sa.Column("namespace", sa.String(255), primary_key=True),
        sa.Column("memory", sa.String(255), primary_key=True),
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("head", sa.String(255), nullable=False),
        sa.Column("depth", sa.Integer, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("changed", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "baton_attachments",
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("temporal_namespace", sa.String(255), nullable=False),
        sa.Column("content", sa.Text, nullable=False),
    )
    op.create_table(
        "baton_blobs",
        sa.Column("sha", sa.String(64), primary_key=True),
        sa.Column("blob", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "baton_holds",
        sa.Column("temporal_namespace", sa.String(255), primary_key=True),
        sa.Column("family", sa.String(64), primary_key=True),
        sa.Column("sha", sa.String(64), primary_key=True),
        sa.Column("at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "baton_accounts",
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("began", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("cost", sa.BigInteger, nullable=False),
        sa.Column("model_calls", sa.BigInteger, nullable=False),
        sa.Column("tool_calls", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "baton_calls",
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
    )
    op.create_table(
        "baton_workers",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("renewed", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "baton_charges",
        sa.Column("call", sa.String(255), primary_key=True),
        sa.Column("account", sa.String(255), primary_key=True),
        sa.Column("settled", sa.Boolean, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("cost", sa.BigInteger, nullable=False),
        sa.Column("model_calls", sa.BigInteger, nullable=False),
        sa.Column("tool_calls", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "baton_grants",
        sa.Column("account", sa.String(255), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("until", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("cost", sa.BigInteger, nullable=False),
        sa.Column("model_calls", sa.BigInteger, nullable=False),
        sa.Column("tool_calls", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "baton_manifests",
        sa.Column("kind", sa.String(255), primary_key=True),
        sa.Column("namespace", sa.String(255), primary_key=True),
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("change", sa.String(32), nullable=False),
        sa.Column("changed", sa.BigInteger, nullable=False),
        sa.Column("manifest", sa.Text, nullable=False),
    )
    # Workers look for the highest revision to see whether the store has changed.
    op.create_index("baton_manifests_revision", "baton_manifests", ["revision"])
    op.create_table(
        "baton_worker_manifests",
        sa.Column("namespace", sa.String(255), primary_key=True),
        sa.Column("task_queue", sa.String(255), primary_key=True),
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("published", sa.BigInteger, nullable=False),
        sa.Column("catalog", sa.Text, nullable=False),
    )
    op.create_table(
        "baton_tokens",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("token", sa.Text, nullable=False),
        sa.Column("leased_until", sa.BigInteger, nullable=False),
        sa.Column("changed", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "baton_keys",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("proof", sa.Text, nullable=False),
    )
    # The rows of a run are deleted together; their ids begin with the run's.
    op.create_index("baton_messages_run", "baton_messages", [sa.text("substr(id, 1, 36)"), "temporal_namespace"])
    for table, column in (
        ("baton_attachments", "id"),
        ("baton_uses", "run"),
        ("baton_bookmarks", "head"),
        ("baton_copies", "head"),
        ("baton_accounts", "id"),
        ("baton_calls", "id"),
        ("baton_charges", "call"),
        ("baton_grants", "account"),
    ):
        op.create_index(f"{table}_run", table, [sa.text(f"substr({column}, 1, 36)")])
    between_runs = sa.text("substr(parent, 1, 36) != substr(id, 1, 36)")
    op.create_index(
        "baton_messages_after",
        "baton_messages",
        [sa.text("substr(parent, 1, 36)")],
        sqlite_where=between_runs,
        postgresql_where=between_runs,
    )
    identity = op.create_table(
        "baton_identity",
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("value", sa.String(255), nullable=False),
    )
    op.bulk_insert(identity, [{"name": "id", "value": uuid.uuid4().hex[:16]}])
