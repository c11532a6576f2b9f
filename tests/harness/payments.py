"""The worker of an application with activities, which knows nothing of Baton, and the Tool that calls one of them."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.common import RawValue
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from tests.harness.environment import Json, manifest

PROPERTIES: Json = {"amount": {"type": "integer"}, "currency": {"type": "string", "default": "EUR"}}
SCHEMA: Json = {"type": "object", "properties": PROPERTIES, "required": ["amount"]}


@dataclass
class Claim:
    """What an activity with one argument gets."""

    amount: int
    currency: str


class Payments:
    """An application's activities, which note their calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.failures: list[Exception] = []
        self.declined = set[int]()
        self.called = asyncio.Event()
        self.canceled = asyncio.Event()

    @activity.defn
    async def charge_card(self, amount: int, currency: str = "CHF") -> str:
        """Fails as often as there are failures, and always for an amount that is declined."""
        self.calls.append((amount, currency))
        if amount in self.declined:
            raise ApplicationError("the card was declined", non_retryable=True)
        if self.failures:
            raise self.failures.pop(0)
        return f"charged {amount} {currency}"

    @activity.defn
    async def pay_claim(self, claim: Claim) -> Claim:
        """Returns its only argument."""
        self.calls.append(claim)
        return claim

    @activity.defn
    async def wait_for_bank(self) -> None:
        """Runs until it is canceled."""
        self.called.set()
        try:
            while True:
                activity.heartbeat()
                await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            self.canceled.set()
            raise

    @activity.defn
    async def sealed(self) -> RawValue:
        """Returns what only the application can read."""
        self.calls.append(())
        return RawValue(Payload(metadata={"encoding": b"binary/sealed"}, data=b"?"))


@asynccontextmanager
async def application(
    client: Client, converter: DataConverter = DataConverter.default
) -> AsyncIterator[tuple[Payments, str]]:
    """The worker of an application, with a client and a data converter of its own, and its task queue."""
    payments = Payments()
    own = await Client.connect(client.service_client.config.target_host, data_converter=converter)
    queue = f"payments-{uuid.uuid4().hex[:8]}"
    activities: Sequence[Callable[..., Any]] = (
        payments.charge_card,
        payments.pay_claim,
        payments.wait_for_bank,
        payments.sealed,
    )
    async with Worker(own, task_queue=queue, activities=activities):
        yield payments, queue


def tool(queue: str | None, name: str = "charge", kind: str = "charge_card", /, **spec: Any) -> Json:
    """A Tool that calls an activity; ``activity`` has further fields of that."""
    given: Json = {"type": kind, **({"taskQueue": queue} if queue else {}), **spec.pop("activity", {})}
    return manifest("Tool", name, {"type": "activity", "inputSchema": SCHEMA, "activity": given, **spec})
