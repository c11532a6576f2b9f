"""Tokens of an OIDC issuer: https://openid.net/specs/openid-connect-discovery-1_0.html."""

import asyncio
import hashlib
import json
import re
import time
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import jwt
from jwt import PyJWKClient, PyJWKClientError

from ...contracts.settings import SettingsError
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

LEEWAY = 30.0
"""Seconds by which the clocks may differ."""

REFRESH_SECONDS = 30.0
"""Seconds until an unknown key leads to another look at the issuer's keys: any client may send one."""

RETRY_SECONDS = 10.0
"""Seconds after a failed request to the issuer until the next one."""

MAX_NAME = 64

_KUBERNETES = re.compile(r"system:serviceaccount:([a-z0-9-]+):([a-z0-9.-]+)")
_ACCOUNT = re.compile(r"(?:([a-z0-9-]+)/)?([a-z0-9]([a-z0-9.-]*[a-z0-9])?)")


class OidcTokens:
    """Verifies tokens with the issuer's public keys, which are fetched once and again when an unknown one is used."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Raises SettingsError if the issuer is no https URL, or the audience is missing."""
        issuer = urlsplit(settings.issuer or "")
        if not (issuer.scheme == "https" or (issuer.scheme == "http" and is_loopback(issuer.hostname or ""))):
            raise SettingsError("BATON_GATEWAY_OIDC_ISSUER: write an https:// URL")
        if not settings.audience:
            raise SettingsError("BATON_GATEWAY_OIDC_AUDIENCE is missing: tokens for other services must not count here")
        self._settings = settings
        self._keys: PyJWKClient | None = None
        self._failed_at = -RETRY_SECONDS
        self._finding = asyncio.Lock()

    async def verify(self, token: str) -> Caller:
        """The caller with a token. Raises UnauthenticatedError, and UnavailableError if the issuer can't be reached."""
        if len(token) > MAX_TOKEN or token.count(".") != 2:
            raise UnauthenticatedError("the key is not known here")
        try:
            keys = await self._key_client()
            key = await asyncio.to_thread(keys.get_signing_key_from_jwt, token)
            claims: dict[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=ALGORITHMS,
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.PyJWKClientConnectionError:
            raise UnavailableError("the issuer of the token can't be reached now", retry_after=2) from None
        except (
            jwt.PyJWTError,
            PyJWKClientError,
            TypeError,
            ValueError,
        ) as error:  # the last two for another kind of key
            raise UnauthenticatedError(f"the token is not valid: {type(error).__name__}") from None
        return self._caller(claims)

    def _caller(self, claims: dict[str, Any]) -> Caller:
        subject = str(claims["sub"])
        name = subject if len(subject) <= MAX_NAME else hashlib.sha256(subject.encode()).hexdigest()
        if kubernetes := _KUBERNETES.fullmatch(subject):
            return Caller(name, AccountName(kubernetes[1], kubernetes[2]))
        claim = self._settings.account_claim
        if claim is None:
            return Caller(name, AccountName("default", DEFAULT_ACCOUNT))
        account = _ACCOUNT.fullmatch(str(claims.get(claim, "")))
        if account is None:
            raise UnauthenticatedError(f"the token's claim {claim} does not name a ServiceAccount")
        return Caller(name, AccountName(account[1] or "default", account[2]))

    async def _key_client(self) -> PyJWKClient:
        async with self._finding:
            if self._keys is None:
                if time.monotonic() - self._failed_at < RETRY_SECONDS:
                    raise UnavailableError("the issuer of the token can't be reached now", retry_after=RETRY_SECONDS)
                try:
                    url = await asyncio.to_thread(_jwks_url, self._settings.issuer or "")
                except (OSError, ValueError, KeyError) as error:
                    self._failed_at = time.monotonic()
                    raise UnavailableError("the issuer of the token can't be reached now", retry_after=2) from error
                self._keys = PyJWKClient(url, timeout=TIMEOUT, cooldown_duration=REFRESH_SECONDS)
            return self._keys


def _jwks_url(issuer: str) -> str:
    """The address of the issuer's keys, from its discovery document."""
    address = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
    with urllib.request.urlopen(address, timeout=TIMEOUT) as response:  # the operator's own setting
        document = json.loads(response.read(1_000_000))
    if document["issuer"] != issuer:
        raise ValueError("the discovery document is of another issuer")
    url = str(document["jwks_uri"])
    if urlsplit(url).scheme != urlsplit(issuer).scheme:
        raise ValueError("the issuer's keys are at an address with another scheme")
    return url
