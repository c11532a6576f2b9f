"""The calls of a worker to models, tools and agents: each behind a circuit breaker, metered, and with its span."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, nullcontext

from ...contracts.errors import BatonError, CircuitOpen
from ...contracts.message import TokenUsage
from ...observability import metrics
from ...observability.metrics import OTHER, CallKind, metered
from ...resources.a2a_server import A2AServer
from ...resources.agent import Agent
from ...resources.base import Reference, parse_duration
from ...resources.catalog import Catalog
from ...resources.execution_engine import ExecutionEngine
from ...resources.manifest import CircuitBreaker, Manifest
from ...resources.mcp_server import MCPServer
from ...resources.model import Model
from ...resources.tool import Tool
from .value_resolver import ValueResolver, address_of

PROBE_SECONDS = 5.0
"""How long a call waits in its activity for the one that tries; then it waits in its workflow."""

MAX_CIRCUITS = 1_000
"""Circuits that a worker remembers. Beyond that it forgets those that are closed."""

log = logging.getLogger("baton")


class Circuit:
    """The circuit of one server: closed, open until a time, or half open while one call, the probe, tries.

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
        metrics.CIRCUITS_OPENED.record(0, **labels)  # a counter that begins with 1 tells Prometheus of no increase
        metrics.CIRCUITS_OPEN.record(0, **labels)

    @property
    def is_closed(self) -> bool:
        """Whether every call may begin."""
        return self._open_until is None

    @property
    def state(self) -> str:
        """What it is, for people: the text has no words of the server, which may hold what is secret."""
        if self._open_until is None:
            return "closed"
        return "half open" if self._probe or self._left <= 0 else f"open for another {self._left:.0f} s"

    @contextlib.asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Makes a call in the block; its failures count if they are the server's. Raises CircuitOpen if it is open."""
        probe = await self._admitted()
        try:
            yield
        except BatonError as error:
            self._ended(probe, error if error.outage else None)
            raise
        except BaseException:
            self._leave(probe)
            raise
        self._ended(probe, None)

    @property
    def _left(self) -> float:
        return (self._open_until or 0) - time.monotonic()

    async def _admitted(self) -> asyncio.Event | None:
        """None for a call while it is closed, the event of the probe for the one that tries."""
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

    def _refusal(self, left: float) -> CircuitOpen:
        text = f"the circuit breaker of {self.name} is open: {self._why}"
        return CircuitOpen(text, {"wait": left} if self._rule.on_open == "wait" else {})

    def _ended(self, probe: asyncio.Event | None, failed: BatonError | None) -> None:
        if failed and (probe or self._open_until is None):
            self._failed(failed, again=probe is not None)
        elif probe and not failed:
            self._open_until = None
            self._failed_at.clear()
            metrics.CIRCUITS_OPEN.record(-1, **self._labels)
            log.warning("the circuit breaker of %s is closed", self.name)
        self._leave(probe)

    def _failed(self, failed: BatonError, *, again: bool) -> None:
        now = time.monotonic()
        self._failed_at.append(now)
        many = len(self._failed_at) == self._rule.failures and now - self._failed_at[0] <= self._window
        if again or many:
            metrics.CIRCUITS_OPENED.record(1, **self._labels)
            metrics.CIRCUITS_OPEN.record(float(self.is_closed), **self._labels)
            self._open_until = now + self._open_for
            self._why = failed.message
            what = "again" if again else f"after {self._rule.failures} failures within {self._rule.window}"
            log.warning("the circuit breaker of %s is open %s: %s", self.name, what, failed.message)

    def _leave(self, probe: asyncio.Event | None) -> None:
        if probe:
            self._probe = None
            probe.set()


class Call:
    """A call that is being made, with the name that it has in metrics."""

    def __init__(self, kind: CallKind, name: str) -> None:
        self._labels = {"kind": kind, "name": name}

    def used(self, usage: TokenUsage | None) -> None:
        """Counts the tokens of its answer, and what they have cost."""
        if usage:
            metrics.TOKENS.record(usage.prompt_tokens, **self._labels, direction="prompt")
            metrics.TOKENS.record(usage.completion_tokens, **self._labels, direction="completion")
            metrics.CACHED_TOKENS.record(usage.cached_tokens, **self._labels)
            metrics.COST.record(usage.cost or 0, **self._labels)


class Calls:
    """The calls of a worker. ``own`` are its manifests: only what they name has a name of its own in metrics."""

    def __init__(self, own: Catalog | None = None) -> None:
        # By whether a manifest is inline, what it says, and its address: an inline one shares no circuit with others.
        self._circuits: dict[tuple[bool, str, str], Circuit] = {}
        self.know(own or Catalog())

    @property
    def open_circuits(self) -> dict[str, str]:
        """The state of each circuit that is not closed, by the id of its manifest."""
        return {circuit.name: circuit.state for circuit in self._circuits.values() if not circuit.is_closed}

    def know(self, own: Catalog) -> None:
        """Takes other manifests as the worker's."""
        self._own = own
        self._models = {each.model_reference().name for each in own.manifests if isinstance(each, Agent)}

    @contextlib.asynccontextmanager
    async def make(
        self,
        kind: CallKind,
        manifest: Manifest | None,
        values: ValueResolver,
        name: str = "",
        server: Manifest | None = None,
        span: AbstractContextManager[None] | None = None,
    ) -> AsyncIterator[Call]:
        """Makes a call in the block to what a manifest describes, or to what is called ``name`` and has none.

        The circuit breaker is that of its ``server``, if it has one. Raises CircuitOpen: then the call is not metered
        and has no ``span``.
        """
        label = self._label(manifest, values) if manifest else self._name(kind, name)
        circuit = self._circuit(server or manifest, values, label)
        async with circuit.call() if circuit else nullcontext():
            with metered(kind, label), span or nullcontext():
                yield Call(kind, label)

    def _circuit(self, manifest: Manifest | None, values: ValueResolver, label: str) -> Circuit | None:
        rule = breaker_of(manifest)
        if manifest is None or rule is None:
            return None
        address = values.resolve(address_of(manifest), manifest) or ""
        key = values.catalog.is_inline(manifest.id), manifest.model_dump_json(exclude_unset=True), address
        if key not in self._circuits:
            if len(self._circuits) >= MAX_CIRCUITS:
                self._circuits = {key: circuit for key, circuit in self._circuits.items() if not circuit.is_closed}
            self._circuits[key] = Circuit(manifest.id, rule, {"kind": manifest.kind, "name": label})
        return self._circuits[key]

    def _label(self, manifest: Manifest, values: ValueResolver) -> str:
        """The name of a manifest of the worker; of a tool that a server lists, the name of its server."""
        if values.catalog.is_inline(manifest.id):
            return OTHER
        found = self._own.find(Reference((), (manifest.kind,), manifest.namespace, manifest.name))
        return found.name if found else OTHER

    def _name(self, kind: CallKind, name: str) -> str:
        """The name of a built-in tool, or of a model on the environment's server that an own agent uses."""
        if kind == "tool":
            return name
        return name if name in self._models else OTHER


def breaker_of(manifest: Manifest | None) -> CircuitBreaker | None:
    """The circuit breaker that a manifest has."""
    if isinstance(manifest, Model | Tool | MCPServer | A2AServer | ExecutionEngine):
        return manifest.spec.circuit_breaker
    return None
