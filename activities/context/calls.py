"""Makes the calls of a worker: each under the circuit breaker of what is called, counted, and timed."""

import contextlib
from collections.abc import AsyncIterator

from ...conversation import metrics
from ...conversation.messages.message import TokenUsage
from ...conversation.metrics import OTHER
from ...resources.agent import Agent
from ...resources.base import Reference
from ...resources.catalog import Catalog
from ...resources.manifest import Manifest
from ..runtime.counted import CallKind, counted
from .circuits import Circuits
from .value_resolver import ValueResolver


class Call:
    """A call that is being made, with the name under which it is counted."""

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
        self.circuits = Circuits()
        self.know(own or Catalog())

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
    ) -> AsyncIterator[Call]:
        """Makes a call in the block to what a manifest describes, or to what is called ``name`` and has none.

        It is under the circuit breaker of its ``server``, if that is another one. Raises CircuitOpen, and then counts
        no call.
        """
        label = self._label(manifest, values) if manifest else self._name(kind, name)
        async with self.circuits.call(server or manifest, values, label):
            with counted(kind, label):
                yield Call(kind, label)

    def _label(self, manifest: Manifest, values: ValueResolver) -> str:
        """The name of a manifest of the worker; of a tool that a server lists, the name of its server."""
        if values.catalog.is_brought(manifest.id):
            return OTHER
        found = self._own.find(Reference((), (manifest.kind,), manifest.namespace, manifest.name))
        return found.name if found else OTHER

    def _name(self, kind: CallKind, name: str) -> str:
        """The name of a built-in tool, or of a model on the environment's server that an own agent uses."""
        if kind == "tool":
            return name
        return name if name in self._models else OTHER
