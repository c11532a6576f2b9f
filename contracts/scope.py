"""Scopes: the names of conversations and of shared sessions are kept apart for each caller of a gateway and account."""

import hashlib

CALLER = "caller"
"""The memo entry of a run with the name of the caller that has started it through the gateway."""

ACCOUNT = "account"
"""The memo entry with the caller's ServiceAccount, as NAMESPACE/NAME."""

SCOPE = "scope"
"""The memo entry of a run with the scope of the gateway's caller; empty for this machine's own."""

MAX_SCOPED = 255
"""Characters of a name in its scope: the journal stores no longer ones."""


def scope_of(account: str, caller: str = "") -> str:
    """The scope of a caller, or of an ``account``, NAMESPACE/NAME, whose run nobody has started over a gateway.

    A slash in the caller's name is escaped: it must not look like the end of a shorter name.
    """
    return f"{account}/{caller.replace('%', '%25').replace('/', '%2F')}/"


def scoped(scope: str, name: str) -> str:
    """A name in a scope, so that it is none of another scope. A name that has the scope already stays as it is."""
    if name.startswith(scope):
        return name
    whole = f"{scope}{name}"
    return whole if len(whole) <= MAX_SCOPED else hashlib.sha256(whole.encode()).hexdigest()
