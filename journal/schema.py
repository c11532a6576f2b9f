"""The journal's tables, as the code uses them; ``migrations/`` creates and changes them."""

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, LargeBinary, MetaData, String, Table, Text

metadata = MetaData()

messages = Table(
    "baton_messages",
    metadata,
    Column("id", String(255), primary_key=True),
    Column("parent", String(255), nullable=False),
    Column("depth", Integer, nullable=False),
    Column("message", Text, nullable=False),
)
"""A row of a conversation. ``parent`` is the id of the row before it, empty for the first; ``depth`` counts from 1."""

catalogs = Table(
    "baton_catalogs",
    metadata,
    Column("sha", String(64), primary_key=True),
    Column("catalog", Text, nullable=False),
)
"""The catalogs of manifests that runs are pinned to, each under its id, or with a key under a keyed hash of that."""

uses = Table(
    "baton_uses",
    metadata,
    Column("run", String(255), primary_key=True),
    Column("sha", String(64), primary_key=True),
)
"""Which run has pinned which catalog; a catalog is deleted with the last of its runs."""

bookmarks = Table(
    "baton_bookmarks",
    metadata,
    Column("session", String(255), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("begun", Integer, nullable=False),
    Column("head", String(255), nullable=False),
    Column("depth", Integer, nullable=False),
)
"""The transcript that a session keeps under a key: the rows after the depth ``begun`` up to a head."""

conversations = Table(
    "baton_conversations",
    metadata,
    Column("namespace", String(255), primary_key=True),
    Column("memory", String(255), primary_key=True),
    Column("id", String(255), primary_key=True),
    Column("head", String(255), nullable=False),
    Column("depth", Integer, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False),
)
"""The head of each conversation that queries continue; ``memory`` is the name of a Memory without a manifest, or
empty. The times are in seconds since 1970."""

blobs = Table(
    "baton_blobs",
    metadata,
    Column("sha", String(64), primary_key=True),
    Column("blob", LargeBinary, nullable=False),
)
"""Values that are too long for a history, under the SHA-256 of their bytes."""

holds = Table(
    "baton_holds",
    metadata,
    Column("family", String(64), primary_key=True),
    Column("sha", String(64), primary_key=True),
    Column("at", BigInteger, nullable=False),
)
"""Which family of workflows has stored which value, and when it last did, in seconds since 1970."""

accounts = Table(
    "baton_accounts",
    metadata,
    Column("id", String(255), primary_key=True),
    Column("began", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),
    Column("model_calls", BigInteger, nullable=False),
    Column("tool_calls", BigInteger, nullable=False),
)
"""What was used under a budget in a run, with what is reserved for calls under way; ``cost`` in billionths of a dollar.

``began`` is the time of its first call, in seconds since 1970.
"""

charges = Table(
    "baton_charges",
    metadata,
    Column("call", String(255), primary_key=True),
    Column("account", String(255), primary_key=True),
    Column("settled", Boolean, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),
    Column("model_calls", BigInteger, nullable=False),
    Column("tool_calls", BigInteger, nullable=False),
)
"""What a call is charged to an account: an estimate until it is ``settled``."""

grants = Table(
    "baton_grants",
    metadata,
    Column("account", String(255), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("until", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),
    Column("model_calls", BigInteger, nullable=False),
    Column("tool_calls", BigInteger, nullable=False),
)
"""What people have granted to an account in addition, numbered from 0; calls may begin ``until`` then, if that is later
than the duration of the budget allows."""

manifests = Table(
    "baton_manifests",
    metadata,
    Column("kind", String(255), primary_key=True),
    Column("namespace", String(255), primary_key=True),
    Column("name", String(255), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("revision", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False),
    Column("manifest", Text, nullable=False),
    Index("baton_manifests_revision", "revision"),
)
"""The manifests of the store: a row for each version of a resource, counted from 1; an empty ``manifest`` says that it
was deleted. ``revision`` counts the changes of the whole store, ``changed`` is in seconds since 1970."""

tokens = Table(
    "baton_tokens",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("token", Text, nullable=False),
    Column("leased_until", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False),
)
"""The OAuth tokens that workers have refreshed, sealed with the token of the Secret whose place they take; empty until
the first one is there. Until ``leased_until``, in milliseconds since 1970, one worker alone refreshes it; ``changed``
is in seconds since 1970."""

versions = Table("baton_schema", metadata, Column("version", Integer, primary_key=True))
"""One row for each version that the tables have been migrated to; the highest is that of today."""

identity = Table(
    "baton_identity",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("value", String(255), nullable=False),
)
"""The journal's ``id``; ``replaces/ID`` for each journal whose place it takes; ``serves/ID`` for each namespace."""

keys = Table(
    "baton_keys",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("proof", Text, nullable=False),
)
"""The ids of the keys that have encrypted anything here; who can decrypt ``proof`` has the same key of that id."""
