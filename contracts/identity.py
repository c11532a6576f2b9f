"""Who sends a decision or starts a run, as a gateway has verified it, and the signature that proves that to workers.

A Temporal client may write any name into what it sends. A gateway knows its caller by a key or a token, and signs the
name, the groups and what is decided with a key that only gateways and workers have. A signature is of no use for
anything else than that decision. An act, such as the start of a run or a message to it, is signed without its content:
within ``ACT_SECONDS`` a Temporal client can repeat it, for the same run, with another content.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple, Self

from pydantic import JsonValue, ValidationError

from ..resources.base import JsonModel
from .settings import SettingsError

IDENTITY_KEY = "BATON_IDENTITY_KEY"
"""The environment variable with the key; several, separated by commas, while it is exchanged: the first one signs."""

MIN_KEY = 32
"""Characters of a key."""

REQUESTER = "requester"
"""The memo entry of a run with the signed identity of who has started it."""

START = "start"
"""The act of starting a run; other acts are the names of signals and updates."""

ACT_SECONDS = 600
"""Seconds that may lie between the signature of an act and the act, so that nobody repeats it later."""


class Identity(JsonModel):
    """A person's verified ``name`` and ``groups``, with the ``signature``; ``at`` is the time of an act."""

    name: str
    groups: tuple[str, ...] = ()
    at: datetime | None = None
    signature: str = ""


@dataclass(frozen=True)
class Actor:
    """Who does something, as the audit log names it: ``verified`` if a gateway knows who it is.

    ``via``: over a gateway, in the database of the journal, or by Temporal, where ``client`` names itself so.
    """

    who: str
    via: Literal["gateway", "journal", "temporal"]
    verified: bool = False
    client: str = ""


class DecisionPlace(JsonModel):
    """Which decision is signed: that with this ``id``, for which a run of a Temporal namespace waits ``since``.

    ``update`` is how it is sent, ``digest`` that of what is decided.
    """

    namespace: str
    run: str
    id: str
    since: datetime
    update: str
    digest: str


class IdentityKeys(NamedTuple):
    """The keys that sign and verify identities; none if there are none."""

    keys: tuple[str, ...] = ()

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """The keys in the environment. Raises SettingsError for one that is too short to be safe."""
        keys = tuple(filter(None, (key.strip() for key in environ.get(IDENTITY_KEY, "").split(","))))
        if any(len(key) < MIN_KEY for key in keys):
            raise SettingsError(
                f"{IDENTITY_KEY}: a key must have at least {MIN_KEY} characters; make one with: openssl rand -hex 32"
            )
        return cls(keys)

    def sign_decision(self, identity: Identity, place: DecisionPlace) -> Identity | None:
        """The identity signed for a decision; None without a key."""
        return self._sign(identity, _decision(place))

    def is_of_decision(self, identity: Identity, place: DecisionPlace) -> bool:
        """Whether the identity was signed for that decision."""
        return self._is_signed(identity, _decision(place))

    def sign_act(self, identity: Identity, namespace: str, run: str, act: str) -> Identity | None:
        """The identity signed for what it does to a run now, such as its start; None without a key."""
        now = datetime.now(UTC)
        return self._sign(Identity(name=identity.name, groups=identity.groups, at=now), [act, namespace, run])

    def who_acts(self, signed: object, namespace: str, run: str, act: str, at: datetime) -> str | None:
        """The name of who has done something to a run at a time, by the JSON of a signed identity; None if that proves
        nobody."""
        try:
            text = signed if isinstance(signed, str) else json.dumps(signed)
            identity = Identity.model_validate_json(text)
        except (TypeError, ValidationError):
            return None
        acted = _utc(identity.at)
        if acted is None:
            return None
        is_near = abs((acted - at).total_seconds()) <= ACT_SECONDS
        return identity.name if is_near and self._is_signed(identity, [act, namespace, run]) else None

    def _sign(self, identity: Identity, what: list[JsonValue]) -> Identity | None:
        if not self.keys:
            return None
        signature = _signature(self.keys[0], identity, what)
        return Identity(name=identity.name, groups=identity.groups, at=identity.at, signature=signature)

    def _is_signed(self, identity: Identity, what: list[JsonValue]) -> bool:
        return any(
            hmac.compare_digest(_signature(key, identity, what).encode(), identity.signature.encode())
            for key in self.keys
        )


def _decision(place: DecisionPlace) -> list[JsonValue]:
    since = place.since.astimezone(UTC).isoformat()
    return ["decision", place.namespace, place.run, place.id, since, place.update, place.digest]


def _utc(at: datetime | None) -> datetime | None:
    """A time in UTC; None if it has no time zone, or is out of range there: anybody may send it."""
    try:
        return at.astimezone(UTC) if at and at.tzinfo else None
    except OverflowError:
        return None


def _signature(key: str, identity: Identity, what: list[JsonValue]) -> str:
    """The HMAC of what is signed. JSON keeps its parts apart, whatever characters they have."""
    acted = _utc(identity.at)
    at = acted.isoformat() if acted else None
    signed = json.dumps(["baton", *what, identity.name, [*identity.groups], at])
    return hmac.new(key.encode(), signed.encode(), hashlib.sha256).hexdigest()


def digest_of(request: JsonModel) -> str:
    """The digest of a request as it is signed: all of it but who sends it.

    Without defaults, so that a gateway and a worker of another release agree: a newer one knows more fields.
    """
    content = request.model_dump(mode="json", exclude={"identity", "by"}, exclude_defaults=True)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
