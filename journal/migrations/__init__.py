"""The migrations of the journal's tables: one file per version, named ``version_NNNN.py``, run in order.

To add one, write the next file and nothing else; ``schema.py`` gets the tables and columns that the code uses::

    \"\"\"Version 2: the budgets of sessions.\"\"\"

    import sqlalchemy as sa
    from alembic.operations import Operations

    revision = "0002"
    down_revision = "0001"

    def upgrade(op: Operations) -> None:
        op.create_table("baton_budgets", sa.Column("session", sa.String(255), primary_key=True), ...)

Three rules hold for every migration:

- It only adds: tables, indexes, and columns that are nullable or have a server default. Workers of the previous version
  are still running meanwhile, and continue to read and write the columns they know until they are replaced.
- It is self-contained: it imports nothing of Baton, because the code changes but a released migration does not.
- It can run in one transaction on SQLite and on PostgreSQL (so no ``CREATE INDEX CONCURRENTLY``). It receives its
  ``Operations``, because ``alembic.op`` is global to the process, which may migrate two journals concurrently.
"""
