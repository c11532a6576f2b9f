"""The migrations of the journal's tables: one file for each version, named ``version_NNNN.py``, run in their order.

To add one, write the next file and nothing else; ``schema.py`` gets the tables and columns that the code uses::

    \"\"\"Version 2: the budgets of sessions.\"\"\"

    import sqlalchemy as sa
    from alembic.operations import Operations

    revision = "0002"
    down_revision = "0001"

    def upgrade(op: Operations) -> None:
        op.create_table("baton_budgets", sa.Column("session", sa.String(255), primary_key=True), ...)

Three rules hold for every migration:

- It only adds: tables, indexes, and columns that are nullable or have a server default. Workers of the version before
  are still running while it runs, and go on reading and writing what they know until they are replaced.
- It stands alone: it imports nothing of Baton, because today's code changes and a migration that was run does not.
- It can run in one transaction on SQLite and on PostgreSQL (so no ``CREATE INDEX CONCURRENTLY``). It is given its
  ``Operations``, because ``alembic.op`` is one for a whole process, and a process may migrate two journals at once.
"""
