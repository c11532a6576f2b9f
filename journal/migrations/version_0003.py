"""Version 3: indexes for what forks and deletions look up."""

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0003"
down_revision = "0002"


def upgrade(op: Operations) -> None:
    """Adds the indexes."""
    op.create_index("baton_charges_account", "baton_charges", [sa.text("substr(account, 1, 36)")])
    op.create_index("baton_uses_sha", "baton_uses", ["sha"])
    op.create_index("baton_holds_sha", "baton_holds", ["sha"])
