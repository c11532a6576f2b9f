"""The journal's tables, as the code uses them; ``migrations/`` creates and changes them."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    func,
    literal_column,
)

metadata = MetaData()

messages = Table(
    "baton_messages",
    metadata,
    Column("id", String(255), primary_key=True),
    Column("temporal_namespace", String(255), nullable=False),
    Column("parent", String(255), nullable=False),
    Column("depth", Integer, nullable=False),
    Column("message", Text, nullable=False),
)
"""A row of a conversation. ``parent`` is the id of the previous row, or empty; ``depth`` counts from 1.

``temporal_namespace``, here and in other tables, is the name of the Temporal namespace whose runs the row belongs to.
Tables without it have ids of runs, which are unique among all namespaces, or data that all namespaces share.
"""

catalogs = Table(
    "baton_catalogs",
    metadata,
    Column("sha", String(64), primary_key=True),
    Column("catalog", Text, nullable=False),
)
"""The catalogs of manifests that runs are pinned to, under their ids, or with a key under keyed hashes of them."""

uses = Table(
    "baton_uses",
    metadata,
    Column("run", String(255), primary_key=True),
    Column("sha", String(64), primary_key=True),
    Column("namespace", String(255)),
    Column("temporal_namespace", String(255)),
    Index("baton_uses_sha", "sha"),
)
"""The catalogs that runs have pinned; a catalog is deleted with the last of its runs. ``namespace`` is that of the
manifest with which the run began, for its retention. Both namespaces are NULL for runs of a version before 1.1."""

bookmarks = Table(
    "baton_bookmarks",
    metadata,
    Column("temporal_namespace", String(255), primary_key=True),
    Column("session", String(255), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("begun", Integer, nullable=False),
    Column("head", String(255), nullable=False),
    Column("depth", Integer, nullable=False),
)
"""The transcript under a key of a session: the rows after the depth ``begun`` up to a head."""

conversations = Table(
    "baton_conversations",
    metadata,
    Column("temporal_namespace", String(255), primary_key=True),
    Column("namespace", String(255), primary_key=True),
    Column("memory", String(255), primary_key=True),
    Column("id", String(255), primary_key=True),
    Column("head", String(255), nullable=False),
    Column("depth", Integer, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False),
)
"""The heads of conversations that queries continue; ``namespace`` is that of the query's manifest, ``memory`` the name
of a Memory without a manifest, or empty. The times are in seconds since 1970."""

copies = Table(
    "baton_copies",
    metadata,
    Column("temporal_namespace", String(255), primary_key=True),
    Column("namespace", String(255), primary_key=True),
    Column("memory", String(255), primary_key=True),
    Column("id", String(255), primary_key=True),
    Column("head", String(255), nullable=False),
    Column("depth", Integer, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False),
)
"""The latest copies of conversations that Memories' services store. Unlike ``conversations``, they are deleted with the
run that wrote their head."""

attachments = Table(
    "baton_attachments",
    metadata,
    Column("id", String(255), primary_key=True),
    Column("temporal_namespace", String(255), nullable=False),
    Column("content", Text, nullable=False),
)
"""Images and files of messages, in base64. An id is that of the run that stored it, with a hash of the content."""

blobs = Table(
    "baton_blobs",
    metadata,
    Column("sha", String(64), primary_key=True),
    Column("blob", LargeBinary, nullable=False),
)
"""Values that are too large for a history, under the SHA-256 of their bytes."""

holds = Table(
    "baton_holds",
    metadata,
    Column("temporal_namespace", String(255), primary_key=True),
    Column("family", String(64), primary_key=True),
    Column("sha", String(64), primary_key=True),
    Column("at", BigInteger, nullable=False),
    Index("baton_holds_sha", "sha"),
)
"""The values that families of workflows have stored, with the time of the last store in seconds since 1970."""

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
"""The amounts used under a budget in a run, including reservations for calls in progress.

``cost`` is in billionths of a US dollar. ``began`` is the time of the first call, in seconds since 1970.
"""

calls = Table(
    "baton_calls",
    metadata,
    Column("id", String(255), primary_key=True),
    Column("owner", String(64), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("state", String(16), nullable=False),
)
"""The calls that cost money or have effects, by the ids of their rows. ``owner`` is the holder of the call's lease: the
id of a worker and a number, or empty; ``epoch`` counts the holders. ``state``: ``reserved``, ``sent`` or ``answered``.
"""

workers = Table(
    "baton_workers",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("renewed", BigInteger, nullable=False),
)
"""The workers that hold leases. ``renewed`` changes about every second: a worker whose value does not change is frozen,
disconnected or dead. It is the worker's own clock in milliseconds since 1970, and never compared with another clock."""

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
"""The charge of a call to an account: an estimate until it is ``settled``. ``call`` is its id, with the epoch of its
lease if the call may be sent several times, because every request costs money."""

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
"""People's grants to an account, numbered from 0. Calls may begin before ``until``, even if the budget's duration is
over."""

quota_accounts = Table(
    "baton_quota_accounts",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("quota", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("period", String(16), nullable=False),
    Column("model", Text, nullable=False),
    Column("began", BigInteger, nullable=False),
    Column("ends", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),
    Column("model_calls", BigInteger, nullable=False),
    Column("tool_calls", BigInteger, nullable=False),
)
"""The amounts that a tenant has used under a Quota in one period, including reservations for calls in progress.

``quota`` is the id of the manifest; ``model`` is empty if all count together. ``began`` and ``ends`` are the bounds of
the period in seconds since 1970, and 0 in rows that transactions only lock. ``charges`` refer to these rows, too.
"""

quota_runs = Table(
    "baton_quota_runs",
    metadata,
    Column("quota", String(64), primary_key=True),
    Column("run", String(255), primary_key=True),
    Column("temporal_namespace", String(255), nullable=False),
    Column("workflow", Text, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("manifest", Text, nullable=False),
)
"""The runs of tenants whose number of open runs is limited: ``number`` is 0 if a run is admitted, counts those that
wait from 1, and is negative if a run has ended. ``run`` is the id of the first run of a chain, ``workflow`` its
workflow id, ``manifest`` the id of the Quota."""

quota_waits = Table(
    "baton_quota_waits",
    metadata,
    Column("run", String(255), primary_key=True),
    Column("quotas", String(64), primary_key=True),
    Column("temporal_namespace", String(255), nullable=False),
    Column("task_queue", Text, nullable=False),
    Column("workflow", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("until", BigInteger, nullable=False),
    Column("told", String(64), nullable=False),
)
"""The runs that wait for a Quota of a ``tenant`` (NAMESPACE/ACCOUNT) ``until`` a time in seconds since 1970, at most:
``quotas`` is the digest of its Quotas with which they began to wait, and ``told`` that of those after whose change they
were told to ask again. ``task_queue`` is that of the workers that have these Quotas."""

manifests = Table(
    "baton_manifests",
    metadata,
    Column("kind", String(255), primary_key=True),
    Column("namespace", String(255), primary_key=True),
    Column("name", String(255), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("revision", BigInteger, nullable=False),
    Column("change", String(32), nullable=False),
    Column("changed", BigInteger, nullable=False),
    Column("manifest", Text, nullable=False),
    Column("author", String(255)),
    Index("baton_manifests_revision", "revision"),
)
"""The manifests of the store: a row per version of a resource, counted from 1; an empty ``manifest`` marks a deletion.
``revision`` counts the changes of the whole store, ``change`` is a random id of the change: after a restored backup,
other changes get the same numbers. ``changed`` is in seconds since 1970, ``author`` the name of who has changed it."""

worker_manifests = Table(
    "baton_worker_manifests",
    metadata,
    Column("namespace", String(255), primary_key=True),
    Column("task_queue", String(255), primary_key=True),
    Column("digest", String(64), primary_key=True),
    Column("published", BigInteger, nullable=False),
    Column("catalog", Text, nullable=False),
)
"""The manifests that workers were started with, for clients: under the id of Temporal's namespace, the task queue, and
the digest in the workers' identities. ``published`` is the last start of such a worker, in seconds since 1970."""

tokens = Table(
    "baton_tokens",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("token", Text, nullable=False),
    Column("leased_until", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False),
)
"""The OAuth tokens that workers have refreshed, encrypted with the token of the Secret that they replace; empty until
the first refresh. Until ``leased_until``, in milliseconds since 1970, only one worker refreshes it; ``changed`` is in
seconds since 1970."""

audit = Table(
    "baton_audit",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("id", String(255), nullable=False, unique=True),
    Column("at", BigInteger, nullable=False),
    Column("action", String(32), nullable=False),
    Column("who", String(255), nullable=False),
    Column("verified", Boolean, nullable=False),
    Column("via", String(32), nullable=False),
    Column("client", String(255), nullable=False),
    Column("kind", String(64), nullable=False),
    Column("namespace", String(255), nullable=False),
    Column("name", String(255), nullable=False),
    Column("outcome", String(32), nullable=False),
    Column("detail", String(255), nullable=False),
    Column("previous", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
)
"""The audit log: see ``journal/audit.py``. Its rows are never changed or deleted, also not with the run they name."""

erasures = Table(
    "baton_erasures",
    metadata,
    Column("temporal_namespace", String(255), primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("namespace", String(255), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("run", String(255), primary_key=True),
)
"""The runs that erasures have still to erase: see ``journal/erasures.py``. The rows of a finished one are deleted."""

versions = Table("baton_schema", metadata, Column("version", Integer, primary_key=True))
"""One row per version that the tables have been migrated to; the highest is the current one."""

identity = Table(
    "baton_identity",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("value", String(255), nullable=False),
)
"""The journal's ``id``; ``replaces/ID`` for every journal that it replaces; ``serves/ID`` for every Temporal namespace
whose workers have used it, with the namespace's name as the value."""

keys = Table(
    "baton_keys",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("proof", Text, nullable=False),
)
"""The ids of the keys that have encrypted data here; ``proof`` verifies that a worker has the same key."""

SHARED = {uses: catalogs, holds: blobs}
"""Tables of rows that several runs share, by the tables of their uses; such a row is deleted with its last use."""

RUN_ID_LENGTH = 36
"""Characters of a run's id, which is a UUID."""


def run_of(column: ColumnElement[str]) -> ColumnElement[str]:
    """The run whose id a column begins with. It is written as in the indexes: with a parameter, SQLite uses none."""
    return func.substr(column, literal_column("1"), literal_column(str(RUN_ID_LENGTH)))


def begins_with(column: ColumnElement[str], prefix: str) -> ColumnElement[bool]:
    """Whether a column begins exactly with a prefix. LIKE, as of ``startswith``, ignores case in SQLite."""
    return func.substr(column, 1, len(prefix)) == prefix


RUN_COLUMNS = (
    messages.c.id,
    attachments.c.id,
    uses.c.run,
    bookmarks.c.head,
    copies.c.head,
    accounts.c.id,
    calls.c.id,
    charges.c.call,
    grants.c.account,
    quota_runs.c.run,
    quota_waits.c.run,
)
"""Columns that begin with the id of a run; their rows are deleted with it. Add those of new tables here."""

for _column in RUN_COLUMNS:
    _more = [messages.c.temporal_namespace] if _column.table is messages else []  # the runs of a namespace are listed
    Index(f"{_column.table.name}_run", run_of(_column), *_more)

_between_runs = run_of(messages.c.parent) != run_of(messages.c.id)
Index("baton_messages_after", run_of(messages.c.parent), sqlite_where=_between_runs, postgresql_where=_between_runs)
"""The first message of each run, by the run that it continues."""

Index("baton_conversations_run", run_of(conversations.c.head))
"""The conversations that later queries continue, by the run that wrote their last message."""

Index("baton_quota_waits_tenant", quota_waits.c.tenant)

Index("baton_charges_account", run_of(charges.c.account))
"""The charges to the accounts of a run, also those that calls of other runs have made."""
