"""Tokens of an OIDC issuer: https://openid.net/specs/openid-connect-discovery-1_0.html."""

import asyncio
import logging
import re
import time
from typing import Any
from urllib.parse import urlsplit

import httpx
import jwt

from ...activities.runtime.outbound import BodyLimits, Destination, Outbound
from ...contracts.errors import BatonError
from ...contracts.settings import SettingsError
from ...resources.approval import caller_name
from ...resources.provenance import Provenance
from ...resources.rights import DEFAULT_ACCOUNT, AccountName
from .access import Caller, is_loopback
from .errors import UnauthenticatedError, UnavailableError
from .settings import GatewaySettings

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""The algorithms of signatures that are accepted: those with a public key."""

MAX_TOKEN = 16_000
"""Characters of a token."""

TIMEOUT = 5.0
"""Seconds for a request to the issuer."""

LIMITS = BodyLimits(size=1_000_000, objects=10_000)
"""The limits of the issuer's documents."""

LEEWAY = 30.0
"""Seconds by which the clocks may differ."""

LIFETIME = 300.0
"""Seconds after which the issuer's keys are fetched again: it may have withdrawn one."""

MAX_GROUPS = 200
"""Groups of a token that count: they are in the history of a run that the caller decides about."""

_log = logging.getLogger(__name__)

_KUBERNETES = re.compile(r"system:serviceaccount:([a-z0-9-]+):([a-z0-9.-]+)")
_ACCOUNT = re.compile(r"(?:([a-z0-9-]+)/)?([a-z0-9]([a-z0-9.-]*[a-z0-9])?)")


class OidcTokens:
    """Verifies tokens with the issuer's public keys."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Raises SettingsError if the issuer is no https URL, or the audience is missing."""
        issuer = urlsplit(settings.issuer or "")
        if not (issuer.scheme == "https" or (issuer.scheme == "http" and is_loopback(issuer.hostname or ""))):
            raise SettingsError("BATON_GATEWAY_OIDC_ISSUER: write an https:// URL")
        if not settings.audience:
            raise SettingsError("BATON_GATEWAY_OIDC_AUDIENCE is missing: tokens for other services are not accepted")
        self._settings = settings
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched_at = -LIFETIME
        self._fetching = asyncio.Lock()

    async def verify(self, token: str) -> Caller:
        """The caller with a token. Raises UnauthenticatedError, and UnavailableError if the issuer can't be reached."""
        if len(token) > MAX_TOKEN or token.count(".") != 2:
            raise UnauthenticatedError("unknown key")
        try:
            key = await self._key(str(jwt.get_unverified_header(token).get("kid", "")))
            claims: dict[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=ALGORITHMS,
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (jwt.PyJWTError, TypeError, ValueError) as error:  # the last two if the key is of another kind
            raise UnauthenticatedError(f"the token is not valid: {type(error).__name__}") from None
        return self._caller(claims)

    def _caller(self, claims: dict[str, Any]) -> Caller:
        subject = str(claims["sub"])
        named = claims.get(self._settings.name_claim)
        if not isinstance(named, str) or not named:
            raise UnauthenticatedError(f"the token has no claim {self._settings.name_claim} with a name")
        name = caller_name(named)
        groups = _groups(claims.get(self._settings.groups_claim))
        if kubernetes := _KUBERNETES.fullmatch(subject):
            return Caller(name, AccountName(kubernetes[1], kubernetes[2]), groups=groups)
        claim = self._settings.account_claim
        if claim is None:
            return Caller(name, AccountName("default", DEFAULT_ACCOUNT), groups=groups)
        account = _ACCOUNT.fullmatch(str(claims.get(claim, "")))
        if account is None:
            raise UnauthenticatedError(f"the token's claim {claim} does not name a ServiceAccount")
        return Caller(name, AccountName(account[1] or "default", account[2]), groups=groups)

    async def _key(self, key_id: str) -> jwt.PyJWK:
        """The issuer's key with that id. Raises UnauthenticatedError and UnavailableError."""
        async with self._fetching:
            age = time.monotonic() - self._fetched_at
            if age >= LIFETIME or (key_id not in self._keys and age >= self._settings.oidc_refresh):
                self._fetched_at = time.monotonic()
                self._keys = await self._fetch_keys()
        if not self._keys:
            text = "the issuer of the token can't be reached now"
            raise UnavailableError(text, retry_after=self._settings.oidc_refresh)
        if key_id not in self._keys:
            raise UnauthenticatedError("the token's key is not known to its issuer")
        return self._keys[key_id]

    async def _fetch_keys(self) -> dict[str, jwt.PyJWK]:
        """The issuer's keys by their ids; those that are known if it can't be reached."""
        issuer = Destination(self._settings.issuer or "", Provenance.FILES, private_hosts=True)
        try:
            configuration = issuer.at(f"{issuer.url.rstrip('/')}/.well-known/openid-configuration")
            document = await _fetch(configuration)
            if document.get("issuer") != issuer.url:
                raise ValueError("the configuration belongs to another issuer")
            found = jwt.PyJWKSet.from_dict(await _fetch(issuer.at(str(document["jwks_uri"]))))
        except (BatonError, httpx.HTTPError, httpx.InvalidURL, jwt.PyJWTError, KeyError, ValueError) as error:
            _log.warning("the issuer %s: %s", issuer.authority, error)
            return self._keys
        return {key.key_id: key for key in found.keys if key.key_id}


def _groups(claim: object) -> tuple[str, ...]:
    """The groups that a token names, at most MAX_GROUPS: a text, or a list of texts."""
    groups = [claim] if isinstance(claim, str) else claim if isinstance(claim, list) else []
    return tuple(group for group in groups if isinstance(group, str) and group)[:MAX_GROUPS]


async def _fetch(destination: Destination) -> dict[str, Any]:
    """A JSON document of the issuer."""
    outbound = Outbound(LIMITS, destination=destination)
    async with outbound.open(httpx.AsyncClient, timeout=TIMEOUT) as http:
        response = await http.get(destination.url)
        response.raise_for_status()
        document = response.json()
    if not isinstance(document, dict):
        raise ValueError("the issuer's document is not a JSON object")
    return document
