"""The calls of a worker to models, tools and agents, with circuit breakers, metrics and spans."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, nullcontext

from ...contracts.errors import BadArguments, BatonError, CircuitOpen, ValidationFault
from ...journal.leases import Lease
from ...observability import metrics
from ...observability.metrics import OTHER, Call, CallKind, metered
from ...resources.a2a_server import A2AServer
from ...resources.agent import Agent
from ...resources.base import Reference, parse_duration
from ...resources.catalog import Catalog
from ...resources.execution_engine import ExecutionEngine
from ...resources.manifest import CircuitBreaker, Manifest
from ...resources.mcp_server import MCPServer
from ...resources.model import Model
from ...resources.tool import Tool
from .value_resolver import ValueResolver

PROBE_SECONDS = 5.0
"""How long a call waits in its activity for the probe's result; after that it waits in its workflow."""

UNUSED_SECONDS = 300.0
"""How long a half-open circuit waits for a probe. Then it is closed: perhaps nothing will call its server again."""

MAX_CIRCUITS = 1_000
"""Circuits in a worker's memory. Beyond this number it drops the closed ones."""

UNSENT = (BadArguments, ValidationFault)
"""Errors of calls that were not sent, which say nothing about their server."""

log = logging.getLogger("baton")


class Circuit:
    """The circuit breaker of one server: closed, open until a time, or half open while one call, the probe, runs.

    ``labels`` are those of its metrics.
    """

    def __init__(self, name: str, rule: CircuitBreaker, labels: dict[str, str]) -> None:
        self.name = name
        self._rule = rule
        self._labels = labels
        self._window = parse_duration(rule.window).total_seconds()
        self._open_for = parse_duration(rule.open_for).total_seconds()
        self._failed_at = deque[float](maxlen=rule.failures)
        self._why = ""
        self._open_until: float | None = None
        self._probe: asyncio.Event | None = None
        self._unused: asyncio.TimerHandle | None = None
        metrics.CIRCUITS_OPENED.record(0, **labels)  # Prometheus sees no increase in a counter that starts at 1
        metrics.CIRCUITS_OPEN.record(0, **labels)

    @property
    def is_closed(self) -> bool:
        """Whether all calls are admitted."""
        return self._open_until is None

    @property
    def state(self) -> str:
        """The state for display. It has no text from the server, which may contain secrets."""
        if self._open_until is None:
            return "closed"
        return "half open" if self._probe or self._left <= 0 else f"open for another {self._left:.0f} s"

    def close(self, why: str) -> None:
        """Admits all calls again, and forgets the failures before."""
        if self._open_until is None:
            return
        self._open_until = None
        self._failed_at.clear()
        if self._unused:
            self._unused.cancel()
        metrics.CIRCUITS_OPEN.record(-1, **self._labels)
        log.warning("the circuit breaker of %s is closed again%s", self.name, why)

    @contextlib.asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Runs a call in the block, and counts its failure if it is an outage of the server. Raises CircuitOpen."""
        probe = await self._admit()
        try:
            yield
        except BatonError as error:
            if isinstance(error, UNSENT):
                self._release(probe)
            else:
                self._record(probe, error if error.outage else None)
            raise
        except BaseException:
            self._release(probe)
            raise
        self._record(probe, None)

    @property
    def _left(self) -> float:
        """Seconds until the next probe."""
        return (self._open_until or 0) - time.monotonic()

    async def _admit(self) -> asyncio.Event | None:
        """The event that ends the probe if this call is the probe; None for a call while the circuit is closed."""
        while self._open_until is not None:
            if self._left > 0:
                raise self._refusal(self._left)
            if self._probe is None:
                self._probe = asyncio.Event()
                return self._probe
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    await self._probe.wait()
            except TimeoutError:
                raise self._refusal(self._open_for) from None
        return None

    def _refusal(self, seconds: float) -> CircuitOpen:
        text = f"the circuit breaker of {self.name} is open: {self._why}"
        return CircuitOpen(text, {"wait": seconds} if self._rule.on_open == "wait" else {})

    def _record(self, probe: asyncio.Event | None, outage: BatonError | None) -> None:
        if outage and (probe or self._open_until is None):
            self._record_outage(outage, again=probe is not None)
        elif probe and not outage:
            self.close("")
        self._release(probe)

    def _record_outage(self, outage: BatonError, *, again: bool) -> None:
        now = time.monotonic()
        self._failed_at.append(now)
        is_over_limit = len(self._failed_at) == self._rule.failures and now - self._failed_at[0] <= self._window
        if again or is_over_limit:
            metrics.CIRCUITS_OPENED.record(1, **self._labels)
            metrics.CIRCUITS_OPEN.record(float(self.is_closed), **self._labels)
            self._open_until = now + self._open_for
            self._why = outage.message
            self._await_probe(self._open_for + UNUSED_SECONDS)
            what = "again" if again else f"after {self._rule.failures} failures within {self._rule.window}"
            log.warning("the circuit breaker of %s is open %s: %s", self.name, what, outage.message)

    def _await_probe(self, seconds: float) -> None:
        """Closes the circuit after that time, unless a call has probed the server by then."""
        if self._unused:
            self._unused.cancel()
        self._unused = asyncio.get_running_loop().call_later(seconds, self._end_if_unused)

    def _end_if_unused(self) -> None:
        if self._probe:
            self._await_probe(UNUSED_SECONDS)
        else:
            self.close(": nothing has called its server any more")

    def _release(self, probe: asyncio.Event | None) -> None:
        if probe:
            self._probe = None
            probe.set()


class Calls:
    """The calls of a worker. Metrics name only what its own manifests define, to limit the number of labels."""

    def __init__(self, worker_catalog: Catalog | None = None) -> None:
        # By whether the manifest is inline, its content, and its address: inline ones share no circuit with others.
        self._circuits: dict[tuple[bool, str, str], Circuit] = {}
        self.know(worker_catalog or Catalog())

    @property
    def open_circuits(self) -> dict[str, str]:
        """The state of each circuit that is not closed, by the id of its manifest."""
        return {circuit.name: circuit.state for circuit in self._circuits.values() if not circuit.is_closed}

    def know(self, worker_catalog: Catalog) -> None:
        """Replaces the worker's manifests, and closes the circuits of those that were changed: they have new ones."""
        self._worker_catalog = worker_catalog
        for (is_inline, content, _), circuit in self._circuits.items():
            current = None if is_inline or circuit.is_closed else worker_catalog.by_id(circuit.name)
            if current and current.model_dump_json(exclude_unset=True) != content:
                circuit.close(": its manifest has changed")
        self._models = {agent.model_reference().name for agent in worker_catalog.manifests if isinstance(agent, Agent)}

    @contextlib.asynccontextmanager
    async def make(
        self,
        lease: Lease,
        kind: CallKind,
        manifest: Manifest | None,
        values: ValueResolver,
        name: str = "",
        server: Manifest | None = None,
        span: AbstractContextManager[None] | None = None,
    ) -> AsyncIterator[Call]:
        """Runs a call in the block: to the target of a manifest, or to ``name`` if it has no manifest.

        The caller holds the call's ``lease``, and the call is not answered yet. The circuit breaker is that of
        ``server``, by default of the manifest. Raises CircuitOpen: then the call is not metered and has no ``span``.
        """
        assert not lease.is_answered
        label = self._label(manifest, values) if manifest else self._name(kind, name)
        circuit = self._circuit(server or manifest, values, label)
        async with circuit.call() if circuit else nullcontext():
            shown = name or (manifest.name if manifest else "")
            with metered(kind, label, shown) as call, span or nullcontext():
                yield call

    def _circuit(self, manifest: Manifest | None, values: ValueResolver, label: str) -> Circuit | None:
        rule = breaker_of(manifest)
        if manifest is None or rule is None:
            return None
        address = values.resolve(manifest.address, manifest) or ""
        key = not values.catalog.provenance_of(manifest).is_own, manifest.model_dump_json(exclude_unset=True), address
        if key not in self._circuits:
            if len(self._circuits) >= MAX_CIRCUITS:
                self._circuits = {key: circuit for key, circuit in self._circuits.items() if not circuit.is_closed}
            self._circuits[key] = Circuit(manifest.id, rule, {"kind": manifest.kind, "name": label})
        return self._circuits[key]

    def _label(self, manifest: Manifest, values: ValueResolver) -> str:
        """The name of a manifest of the worker; for a tool that a server lists, the name of the server."""
        if not values.catalog.provenance_of(manifest).is_own:
            return OTHER
        worker_manifest = self._worker_catalog.find(Reference((), (manifest.kind,), manifest.namespace, manifest.name))
        return worker_manifest.name if worker_manifest else OTHER

    def _name(self, kind: CallKind, name: str) -> str:
        """The name of a built-in tool, or of a model without a manifest that one of the worker's agents uses."""
        if kind == "tool":
            return name
        return name if name in self._models else OTHER


def breaker_of(manifest: Manifest | None) -> CircuitBreaker | None:
    """The circuit breaker of a manifest, if it has one."""
    if isinstance(manifest, Model | Tool | MCPServer | A2AServer | ExecutionEngine):
        return manifest.spec.circuit_breaker
    return None
