"""The migrations of the journal's tables: one file per version, named ``version_NNNN.py``, run in order.

To add one, write the next file and nothing else; ``schema.py`` gets the tables and columns that the code uses::

    \"\"\"Version 2: the budgets of sessions.\"\"\"

    import sqlalchemy as sa
    from alembic.operations import Operations

    revision = "0002"
    down_revision = "0001"

    def upgrade(op: Operations) -> None:
        op.create_table("baton_budgets", sa.Column("session", sa.String(255), primary_key=True), ...)

An index on a table that may have millions of rows would block its writers while it is built, so it is no part of
``upgrade``. It is named in ``INDEXES``, with its table and expressions in SQL, and built before ``upgrade`` runs::

    INDEXES = {"baton_budgets_session": "baton_budgets (session)"}

Four rules hold for every migration:

- It only adds: tables, indexes, and columns that are nullable or have a server default. Workers of the previous version
  are still running meanwhile, and continue to read and write the columns they know until they are replaced.
- It is self-contained: it imports nothing of Baton, because the code changes but a released migration does not.
- ``upgrade`` can run in one transaction on SQLite and on PostgreSQL, and is short. It receives its ``Operations``,
  because ``alembic.op`` is global to the process, which may migrate two journals concurrently.
- ``INDEXES`` are on tables and columns of earlier versions, and not unique. PostgreSQL builds those of all missing
  versions before it runs these, while writers go on; one whose build was interrupted is deleted, and built again.
"""
