"""What all manifests share: apiVersion, kind, metadata, status, and references to other resources."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from .approval import WhoReplies
from .base import (
    API_VERSION,
    Duration,
    FieldError,
    JsonModel,
    Name,
    NameOrRef,
    Path,
    Ref,
    Reference,
    SetByServer,
    parse_duration,
    walk,
)
from .budget import Budget
from .labels import Labels
from .values import ValueSource, sources


class Summarize(JsonModel):
    """How messages that precede a context window are summarized."""

    model: NameOrRef | None = Field(None, description="the Model that writes the summary; by default the agent's own")
    after: int | None = Field(
        None,
        ge=1,
        description="how many tokens of history are read before a summary is written; by default 2 * maxTokens",
    )


class ContextWindow(JsonModel):
    """The latest messages, up to a number of messages or tokens; optionally also the first ones."""

    max_messages: int | None = Field(None, ge=1, description="how many messages of the history are read")
    max_tokens: int | None = Field(None, ge=1, description="how many tokens of it, counted as four bytes each")
    keep_first: int = Field(0, ge=0, description="how many of its first messages are always read")
    summarize: Summarize | None = Field(None, description="how older messages are summarized, {model, after}")

    @model_validator(mode="after")
    def _one_measure(self) -> Self:
        if (self.max_messages is None) == (self.max_tokens is None):
            raise ValueError("needs either maxMessages or maxTokens")
        if self.max_messages is not None and self.keep_first > self.max_messages:
            raise ValueError("keepFirst is more than maxMessages")
        if self.summarize and (self.max_tokens is None or self.keep_first):
            raise FieldError(("summarize",), "needs maxTokens, and can't be combined with keepFirst")
        if self.summarize and (self.summarize.after or self.summary_limit) < self.summary_limit // 2:
            raise FieldError(("summarize", "after"), "is less than maxTokens")
        return self

    @property
    def summary_limit(self) -> int:
        """The tokens of history above which a summary is made."""
        return (self.summarize and self.summarize.after) or 2 * (self.max_tokens or 0)

    def used_in(self, namespace: str) -> "ContextWindow":
        """The window with the namespace of its model resolved: by default that of the window's owner."""
        summarize = self.summarize
        if summarize is None or summarize.model is None or summarize.model.namespace:
            return self
        model = Ref(name=summarize.model.name, namespace=namespace)
        return ContextWindow(
            max_messages=self.max_messages,
            max_tokens=self.max_tokens,
            keep_first=self.keep_first,
            summarize=Summarize(model=model, after=summarize.after),
        ).without_defaults


class Metadata(JsonModel):
    """The ``metadata`` of a manifest; fields that a Kubernetes API server adds are read and ignored."""

    name: Name = Field(description="the resource's name")
    namespace: Name = Field("default", description="the resource's namespace")
    labels: Labels = {}
    annotations: dict[str, str] = {}
    uid: SetByServer = None
    generation: SetByServer = None
    generate_name: SetByServer = None
    resource_version: SetByServer = None
    creation_timestamp: SetByServer = None
    deletion_timestamp: SetByServer = None
    owner_references: SetByServer = None
    managed_fields: SetByServer = None
    finalizers: SetByServer = None


class Manifest(JsonModel):
    """The base class of all kinds."""

    api_version: Literal["ark.mckinsey.com/v1alpha1"] = Field(description=f"'{API_VERSION}'")
    kind: str
    metadata: Metadata = Field(description="the resource's name and namespace")
    status: SetByServer = None

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def id(self) -> str:
        """The id of the resource: ``Kind/namespace/name``."""
        return f"{self.kind}/{self.namespace}/{self.name}"

    @property
    def declared_in(self) -> str:
        """The id of the resource whose manifest contains it: its own, unless derived from another's fields."""
        return self.id

    @property
    def address(self) -> ValueSource | None:
        """The address of its server; None if it has none. The address of a Tool is a template."""
        return None

    @property
    def budget(self) -> Budget | None:
        """The limits on the usage of everything below it in one run, for queries, teams and agents."""
        budget: Budget | None = getattr(getattr(self, "spec", None), "budget", None)
        return budget

    @property
    def own_secret(self) -> str:
        """The name of the Secret for the literal keys in the manifest."""
        return f"inline.{self.kind.lower()}.{self.name}"

    @cached_property
    def references(self) -> tuple[Reference, ...]:
        """The resources that this one needs."""
        return tuple(self._references())

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy without cached properties, which pydantic would copy as well."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied

    def _references(self) -> Iterator[Reference]:
        """The resources that the kind references; here those of its values and summaries."""
        for path, source in sources(self):
            for name, kind, ref in source.needs():
                yield Reference((*path, "valueFrom", name, "name"), (kind,), self.namespace, ref.name, ref.optional)
        for path, item in walk(self):
            if isinstance(item, Summarize) and item.model:
                yield self._refer((*path, "model", "name"), ("Model",), item.model)

    def _refer(self, path: Path, kinds: tuple[str, ...], ref: Ref, *, optional: bool = False) -> Reference:
        return Reference(path, kinds, ref.namespace or self.namespace, ref.name, optional)


class CircuitBreaker(JsonModel):
    """After too many failures within a window no call starts for a while; then one probes (ARK: queries, recovery)."""

    failures: int = Field(5, ge=1, le=1_000, description="how many failures of the server open it")
    window: Duration = Field("1m", description="the time within which they happen, such as '1m'")
    open_for: Duration = Field(
        "30s", description="how long it stays open, such as '30s'; then one call probes the server"
    )
    on_open: Literal["wait", "fail"] = Field("wait", description="'wait' until it closes; 'fail': calls fail at once")


class Questions(JsonModel):
    """People answer a server's questions during a call; without this, such a call fails."""

    timeout: Duration | None = Field(
        None, description="how long a question waits, such as '24h'; by default without limit"
    )
    on_timeout: Literal["fail", "skip"] = Field(
        "fail",
        description="after that time: 'fail' the call, or 'skip' the question: the call continues without an answer",
    )
    approvers: WhoReplies = ()

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.on_timeout == "skip" and self.timeout is None:
            raise FieldError(("timeout",), "is missing: onTimeout needs it")
        return self

    @property
    def seconds(self) -> float | None:
        """The timeout in seconds."""
        return parse_duration(self.timeout).total_seconds() if self.timeout else None
