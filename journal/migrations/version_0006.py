"""Version 6: the manifests that are applied to the store, with their versions."""

import sqlalchemy as sa
from alembic.operations import Operations

revision, down_revision = "0006", "0005"


def upgrade(op: Operations) -> None:
    """Adds the table, and an index by which a worker finds the highest revision."""
    op.create_table(
        "baton_manifests",
        *(sa.Column(name, sa.String(255), primary_key=True) for name in ("kind", "namespace", "name")),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("revision", "changed")),
        sa.Column("manifest", sa.Text, nullable=False),
    )
    op.create_index("baton_manifests_revision", "baton_manifests", ["revision"])
