"""Version 1: conversations, catalogs, bookmarks, long values and key ids.

The tables may be there already: workers from before there were migrations created them one by one.
"""

import sqlalchemy as sa
from alembic.operations import Operations

revision, down_revision = "0001", None


def upgrade(op: Operations) -> None:
    """Creates the tables that are missing."""
    op.create_table(
        "baton_messages",
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("parent", sa.String(255), nullable=False),
        sa.Column("depth", sa.Integer, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "baton_catalogs",
        sa.Column("sha", sa.String(64), primary_key=True),
        sa.Column("catalog", sa.Text, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "baton_uses",
        sa.Column("run", sa.String(255), primary_key=True),
        sa.Column("sha", sa.String(64), primary_key=True),
        if_not_exists=True,
    )
    op.create_table(
        "baton_bookmarks",
        sa.Column("session", sa.String(255), primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("begun", sa.Integer, nullable=False),
        sa.Column("head", sa.String(255), nullable=False),
        sa.Column("depth", sa.Integer, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "baton_blobs",
        sa.Column("sha", sa.String(64), primary_key=True),
        sa.Column("blob", sa.LargeBinary, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "baton_holds",
        sa.Column("family", sa.String(64), primary_key=True),
        sa.Column("sha", sa.String(64), primary_key=True),
        sa.Column("at", sa.BigInteger, nullable=False),
        if_not_exists=True,
    )
    op.create_table("baton_schema", sa.Column("version", sa.Integer, primary_key=True), if_not_exists=True)
    op.create_table(
        "baton_keys",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("proof", sa.Text, nullable=False),
        if_not_exists=True,
    )
