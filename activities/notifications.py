"""The activity ``notify``: calls a webhook with an event about a run, signed as in Standard Webhooks."""

import asyncio
import base64
import binascii
import hashlib
import hmac
import time

import httpx
from pydantic_core import to_json
from temporalio import activity

from ..contracts.errors import InvalidInput, InvalidManifest, ToolFailed, UnknownResource
from ..contracts.requests import NotifyRequest, NotifyResult
from ..journal.journal import Journal
from ..journal.leases import without_lease
from ..resources.query import Query, Webhook
from ..resources.run_catalog import RunCatalog
from ..resources.values import check_url
from .context.value_resolver import ValueResolver
from .runtime.http import retry_after
from .runtime.outbound import BodyLimits, Destination, Outbound
from .runtime.secrets import SecretStore

SECONDS = 20.0
"""How long a webhook may take to answer, as Standard Webhooks recommends."""

GONE = 410
"""The status with which a webhook says that it does not want any more events."""

KEY_PREFIX = "whsec_"
"""The prefix of a key in Standard Webhooks."""


def check_webhooks(catalog: RunCatalog) -> None:
    """Raises InvalidInput if the webhooks of an inline query use Secrets: the worker's are not for its servers."""
    query = catalog.query
    if query is None or catalog.provenance_of(query).is_own:
        return
    for index, webhook in enumerate(query.spec.notify):
        for name, source in (("url", webhook.url), ("secret", webhook.secret)):
            if source and source.value_from and source.value_from.secret_key_ref:
                raise InvalidInput(
                    f"{query.id}: spec.notify.{index}.{name}: the webhooks of an inline query can't use Secrets of the "
                    "worker: start a Query of the worker, or leave the notifications unsigned"
                )


def signature(key: str, message: str, timestamp: int, body: bytes) -> str:
    """The header ``webhook-signature``: https://www.standardwebhooks.com. Raises InvalidInput for a wrong key."""
    try:
        secret = base64.b64decode(key.removeprefix(KEY_PREFIX), validate=True)
    except binascii.Error:
        raise InvalidInput(
            "the key of a webhook's signatures is not base64, such as of 'openssl rand -base64 32'"
        ) from None
    signed = f"{message}.{timestamp}.".encode() + body
    return f"v1,{base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()}"


class NotificationActivities:
    """The activity that calls webhooks."""

    def __init__(self, journal: Journal, secrets: SecretStore) -> None:
        self._journal = journal
        self._secrets = secrets

    @activity.defn(name="notify")
    async def notify(self, request: NotifyRequest) -> NotifyResult:
        """Sends an event to a webhook. Each attempt has the same id, by which the receiver knows a repeated one.

        The URL and the key are read at each attempt: neither is in the history. Raises ToolFailed, which is retryable
        unless the webhook is gone or its address must not be called; it names only the host.
        """
        catalog = await self._journal.catalog(request.catalog)
        query = catalog.by_id(request.query)
        if not (isinstance(query, Query) and 0 <= request.hook < len(query.spec.notify)):
            raise UnknownResource(f"{request.query} has no webhook {request.hook + 1}")
        webhook = query.spec.notify[request.hook]
        values = await ValueResolver.of_catalog(self._journal, catalog, self._secrets)
        server = _server_of(webhook, query, values)
        body = to_json(request.event)
        message = str(request.event.get("id", ""))
        timestamp = int(time.time())
        headers = {
            "content-type": "application/cloudevents+json; charset=utf-8",
            "user-agent": "baton",
            "webhook-id": message,
            "webhook-timestamp": str(timestamp),
        }
        if key := values.resolve(webhook.secret, query):
            headers["webhook-signature"] = signature(key, message, timestamp, body)
        await _send(server, body, headers)
        return NotifyResult(delivered=1)


def _server_of(webhook: Webhook, query: Query, values: ValueResolver) -> Destination:
    """The address of a webhook, which is as trusted as the query and the ConfigMap that it is from."""
    url = values.resolve(webhook.url, query) or ""
    try:
        check_url(url)
    except ValueError as error:
        raise InvalidManifest(f"{query.id}: the address of a webhook {error}") from None
    return values.destination_at(url, values.catalog.provenance_of(query))


async def _send(server: Destination, body: bytes, headers: dict[str, str]) -> None:
    host = server.authority
    outbound = Outbound(BodyLimits(size=0, objects=None), destination=server)
    try:
        async with asyncio.timeout(SECONDS), outbound.open(httpx.AsyncClient, timeout=SECONDS) as http:
            with without_lease():  # the receiver knows a repeated event by its id
                async with http.stream("POST", server.url, content=body, headers=headers) as response:
                    status = response.status_code
                    wait = retry_after(response.headers)
    except TimeoutError:
        raise ToolFailed(f"the webhook at {host} did not answer within {SECONDS:g} s", retryable=True) from None
    except httpx.InvalidURL:
        raise ToolFailed("the address of the webhook is invalid") from None
    except httpx.HTTPError as error:
        text = f"the webhook at {host} can't be reached: {type(error).__name__}"
        raise ToolFailed(text, retryable=True) from None
    if not 200 <= status < 300:
        text = f"the webhook at {host} answered HTTP {status}"
        raise ToolFailed(text, retryable=status != GONE, retry_after=wait)
