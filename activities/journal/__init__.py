"""The journal: the database of all messages, whose rows are written once and each point to the row before them.

Import from the modules here: ``journal`` and ``database`` load SQLAlchemy, ``storage_driver`` and ``external_storage``,
which clients need, do not.
"""
