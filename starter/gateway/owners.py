"""Who has started a run of the gateway: entries in its memo, ids that are derived from the caller, and signatures."""

import hashlib
from collections.abc import Mapping

from ...contracts.identity import Identity, IdentityKeys
from ...contracts.scope import ACCOUNT, CALLER, MAX_SCOPED, scope_of, scoped
from .access import LOCAL, Caller

PROTOCOL = "protocol"
"""The memo entry with the protocol by which it was started, such as ``responses``."""

ID_BYTES = 18
"""Random bytes in the id of a run that has no idempotency key."""

MAX_CONVERSATION = MAX_SCOPED
"""Characters of the id of a conversation."""


def signed_act(environ: Mapping[str, str], caller: Caller, namespace: str, run: str, act: str) -> Identity | None:
    """The signed identity of a caller who does something to a run; None if the gateway does not verify it."""
    if not caller.is_verified:
        return None
    return IdentityKeys.of(environ).sign_act(caller.identity, namespace, run, act)


def named_id(caller: Caller, namespace: str, name: str) -> str:
    """The id of the run of a query that a caller has named: another caller may use the same name."""
    text = f"{caller.account}\n{caller.name}\n{namespace}/{name}"
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[: 2 * ID_BYTES]}"


def conversation_of(caller: Caller, name: str) -> str:
    """The id of a caller's conversation: whoever knows the name of another's conversation must not read it."""
    return scoped(scope_of_caller(caller), name)


def scope_of_caller(caller: Caller) -> str:
    """The scope of a caller's names; that of this machine's own caller is empty, as for the command line."""
    return "" if caller is LOCAL else scope_of(str(caller.account), caller.name)


def is_owner(caller: Caller, memo: Mapping[str, object]) -> bool:
    """Whether a caller has started the run with that memo."""
    return memo.get(CALLER) == caller.name and memo.get(ACCOUNT) == str(caller.account)
