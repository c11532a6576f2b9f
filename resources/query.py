"""``kind: Query``: an input and its targets (ARK: queries, system inputs; ``team``: ARK: teams)."""

import contextlib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, JsonValue, ValidationError, model_validator

from .base import (
    BY_SHAPE,
    LIST,
    SECRET,
    SINGLE,
    Duration,
    FieldError,
    JsonModel,
    JsonObject,
    Name,
    NameOrRef,
    NoEffect,
    Path,
    Pattern,
    Ref,
    Reference,
    Text,
)
from .budget import Budget
from .client import ClientRequest
from .content import MAX_ATTACHED, ChatMessage, ContentPart
from .labels import LabelSelector
from .manifest import Manifest
from .values import Address, Headers, Parameter, TextOrValue, check_parameters

ALLOW_INLINE = "baton/allow-inline"
"""The annotation with which a worker's manifest permits its use by inline manifests: see docs/security.md."""

ResourceType = Literal["model", "mcpserver", "a2aserver", "executionengine"]


class Override(JsonModel):
    """Headers for the models or servers that a query or an agent uses: all of a type, or those with certain labels."""

    resource_type: ResourceType = Field(description="'model', 'mcpserver', 'a2aserver' or 'executionengine'")
    headers: Headers = Field(min_length=1, description="headers of each request; they replace those of its manifest")
    label_selector: LabelSelector | None = Field(None, description="labels of the manifests; by default all")

    def is_for(self, manifest: Manifest) -> bool:
        """Whether its headers are sent to the model or server of a manifest."""
        selector = self.label_selector
        matches_labels = selector is None or selector.matches(manifest.metadata.labels)
        return matches_labels and manifest.kind.lower() == self.resource_type

    def forbidden_for(self, manifest: Manifest) -> list[str]:
        """The names of its headers that the annotation of a worker's manifest does not allow to others."""
        if not self.is_for(manifest):
            return []
        patterns = manifest.metadata.annotations.get(ALLOW_INLINE, "")
        allowed = [name.strip().lower() for name in patterns.split(",")]
        names = [header.name for header in self.headers]
        return [name for name in names if not any(fnmatchcase(name.lower(), pattern) for pattern in allowed)]


TargetType = Literal["agent", "team", "model", "tool"]

TARGETS: dict[str, TargetType] = {"Agent": "agent", "Team": "team", "Model": "model", "Tool": "tool"}
"""The kinds of targets, in the order in which a selector lists them."""

DEFAULT_MEMORY = "default"
"""The Memory of a query that names none, if it exists (ARK: queries, memory)."""

DEFAULT_CONFIG = "default"
"""The name of the ArkConfig that is used, and the namespace of manifests that name none."""

NO_EVALUATION = NoEffect("no answer is evaluated")


ConversationId = Annotated[
    str, Pattern(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,255}", "is not an id: 1 to 255 characters, on one line")
]
"""The id of a conversation."""


NotifyEvent = Literal["started", "waiting", "ended"]
"""When a webhook is called: as a run starts, whenever it begins to wait for a person, and as it ends."""


class Webhook(JsonModel):
    """A server that is notified about a query's runs. The run chooses no part of its URL and its key."""

    url: Address = Field(description="the address, as a text or as {valueFrom}")
    events: tuple[NotifyEvent, ...] = Field(
        ("waiting", "ended"), min_length=1, description="which of 'started', 'waiting' and 'ended'"
    )
    secret: Annotated[TextOrValue | None, SECRET] = Field(
        None, description="the key of the signatures, from a Secret: base64, also with the prefix 'whsec_'"
    )

    @model_validator(mode="after")
    def _is_of_manifest(self) -> Self:
        for name, source in (("url", self.url), ("secret", self.secret)):
            if source and source.is_from_run:
                raise FieldError((name, "valueFrom"), "can't come from the run: name a Secret or a ConfigMap")
        return self


class Target(JsonModel):
    """One target of a query."""

    type: TargetType = Field(description="'agent', 'team', 'model' or 'tool'")
    name: Name = Field(description="the target's name")
    namespace: Name | None = Field(None, description="its namespace, if it is not the same")


class QuerySpec(JsonModel):
    """The ``spec`` of a Query: the input and its targets."""

    type: Literal["user", "messages"] = Field(
        "user", description="'user': the input is the text of a question; 'messages': it is a list of messages"
    )
    input: Annotated[
        Annotated[Text, SINGLE] | Annotated[tuple[ChatMessage, ...], LIST, Field(min_length=1)], BY_SHAPE
    ] = Field(
        description="the text of the question; with type 'messages', the question as the last of a list of messages "
        "{role, content}, whose content is a text or a list of texts, images and files"
    )
    targets: tuple[Target, ...] = Field((), description="the targets, all run at the same time, as {type, name}")
    target: Target | None = Field(None, description="{type, name} of the only target")
    team: Ref | None = Field(None, description="{name} of a team that is the only target")
    selector: LabelSelector | None = Field(None, description="labels of more targets, in the same namespace")
    parameters: tuple[Parameter, ...] = Field(
        (), description="values for the templates in the input and in its targets"
    )
    memory: NameOrRef | None = Field(None, description="the Memory that keeps the conversation; by default 'default'")
    session_id: ConversationId | None = Field(None, description="the conversation, if there is no conversationId")
    conversation_id: ConversationId | None = Field(None, description="the conversation that the query continues")
    service_account: NameOrRef | None = Field(None, description="the ServiceAccount whose rights it has")
    timeout: Duration | None = Field(None, description="how long the whole query may take, such as '5m'")
    budget: Budget | None = Field(None, description="limits for everything below it in one run")
    ttl: Duration | None = Field(None, description="how long its data is kept after its end, such as '720h'")
    cancel: bool = Field(False, description="true for a query that is canceled before its targets start")
    evaluators: Annotated[tuple[Ref, ...], NO_EVALUATION] = ()
    evaluator_selector: Annotated[LabelSelector | None, NO_EVALUATION] = None
    overrides: tuple[Override, ...] = Field(
        (), description="headers for models and servers, as {resourceType, headers, labelSelector}"
    )
    client: ClientRequest | None = Field(
        None, description="what the client brings for the only target, an agent that allows it: {tools, settings}"
    )
    notify: tuple[Webhook, ...] = Field(
        (), max_length=10, description="webhooks that are called about its runs, as {url, events, secret}"
    )
    fail_fast: bool = Field(False, description="true to cancel the other targets at the first failure")

    @model_validator(mode="after")
    def _has_targets(self) -> Self:
        fields = [name for name in ("targets", "target", "team") if getattr(self, name)]
        if len(fields) > 1:
            raise FieldError((fields[1],), f"can't be combined with {fields[0]}: keep one of them")
        if not (fields or self.selector):
            raise FieldError(
                ("targets",), "is missing: the query has no targets; write for example [{type: team, name: NAME}]"
            )
        if self.evaluators and self.evaluator_selector:
            raise FieldError(("evaluatorSelector",), "can't be combined with evaluators: keep one of them")
        if isinstance(self.input, str) == (self.type == "messages"):
            shape = "a list of messages {role, content}" if self.type == "messages" else "a text, or a list with type"
            raise FieldError(("input",), f"must be {shape}{'' if self.type == 'messages' else ': messages'}")
        self._check_messages()
        check_parameters(self.parameters, "input", self.text)
        for index, parameter in enumerate(self.parameters):
            if parameter.value_from and parameter.value_from.query_parameter_ref:
                place = ("parameters", index, "valueFrom", "queryParameterRef")
                raise FieldError(place, "is for agents and tools: a query's parameter can't refer to another")
        return self

    def _check_messages(self) -> None:
        if self.messages and self.messages[-1].role != "user":
            raise FieldError(
                ("input", len(self.messages) - 1, "role"), "must be 'user': the last message is the question"
            )
        if not self.text.strip():
            raise FieldError(("input",), "has no question: the last message is empty")
        size = sum(message.attached_bytes for message in self.messages)
        if size > MAX_ATTACHED:
            raise FieldError(
                ("input",),
                f"has images and files of {size:,} bytes in all, and {MAX_ATTACHED:,} bytes can be sent with a query: "
                "name larger ones by a URL",
            )

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        """The messages of the input; empty if it is a text."""
        return () if isinstance(self.input, str) else self.input

    @property
    def text(self) -> str:
        """The text of the question, in which stand-ins show where its images and files belong."""
        return self.input if isinstance(self.input, str) else self.input[-1].text

    @property
    def attached(self) -> tuple[ContentPart, ...]:
        """The images and files of all messages."""
        return tuple(part for message in self.messages for part in message.attached)

    def written_targets(self) -> Iterator[tuple[Path, Target]]:
        """The targets in the order of the manifest, with their paths."""
        if self.target:
            yield ("target",), self.target
        if self.team:
            yield ("team",), Target(type="team", name=self.team.name, namespace=self.team.namespace)
        for index, target in enumerate(self.targets):
            yield ("targets", index), target


def named_targets(
    name: str | None, namespace: str, spec: JsonObject | None, resources: Iterable[JsonObject]
) -> tuple[Target, ...]:
    """The targets in the ``spec`` of a query or, without one, in its manifest among ``resources``.

    The values are those of a client and may be invalid: anything that is not a target is omitted.
    """
    if spec is None:
        names = {"name": name or "query", "namespace": namespace}
        queries = (manifest for manifest in resources if manifest.get("kind") == "Query")
        specs = (manifest.get("spec") for manifest in queries if _names(manifest.get("metadata")) == names)
        spec = next((spec for spec in specs if isinstance(spec, dict)), {})
    team, targets = spec.get("team"), spec.get("targets")
    values = [
        spec.get("target"),
        {**team, "type": "team"} if isinstance(team, dict) else None,
        *(targets if isinstance(targets, list) else ()),
    ]
    read: list[Target] = []
    for value in values:
        with contextlib.suppress(ValidationError):
            read.append(Target.model_validate(value))
    return tuple(read)


def _names(metadata: JsonValue) -> JsonValue:
    metadata = metadata if isinstance(metadata, dict) else {}
    return {"name": metadata.get("name"), "namespace": metadata.get("namespace") or "default"}


class Query(Manifest):
    """A question to agents, teams, models and tools."""

    kind: Literal["Query"] = "Query"
    spec: QuerySpec = Field(description="the input and its targets")

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Values for its input and its targets."""
        return self.spec.parameters

    def in_conversation(self, conversation_id: str) -> "Query":
        """The query with another conversation."""
        spec = self.spec.model_copy(update={"conversation_id": conversation_id})
        return self.model_copy(update={"spec": spec})

    def attaching(self, parts: Iterable[ContentPart]) -> "Query":
        """The query with more images and files after its question. Raises ValidationError if they are too large."""
        *earlier, question = self.spec.messages or (ChatMessage(role="user", content=self.spec.text),)
        own = question.content
        content = (ContentPart(type="text", text=own),) if isinstance(own, str) else own
        with_parts = question.model_copy(update={"content": (*content, *parts)})
        fields = {name: getattr(self.spec, name) for name in self.spec.model_fields_set}
        spec = QuerySpec.model_validate({**fields, "type": "messages", "input": (*earlier, with_parts)})
        return self.model_copy(update={"spec": spec})

    def with_client(self, client: ClientRequest) -> "Query":
        """The query with other tools and settings of its client."""
        return self.model_copy(update={"spec": self.spec.model_copy(update={"client": client})})

    @property
    def without_messages(self) -> "Query":
        """The query without the messages of its input, which the journal has as a conversation, and their bytes."""
        if not self.spec.messages:
            return self
        spec = self.spec.model_copy(update={"type": "user", "input": "(the journal has the messages)"})
        return self.model_copy(update={"spec": spec})

    def _references(self) -> Iterator[Reference]:
        yield from super()._references()
        yield from self.targets()
        yield self.memory_reference()
        yield self.config_reference

    @property
    def config_reference(self) -> Reference:
        """The ArkConfig with defaults for all queries; optional."""
        return Reference(("spec",), ("ArkConfig",), DEFAULT_CONFIG, DEFAULT_CONFIG, optional=True)

    def memory_reference(self) -> Reference:
        """The Memory that stores its conversation; without one the journal stores it."""
        memory = self.spec.memory or Ref(name=DEFAULT_MEMORY)
        return self._refer(("spec", "memory", "name"), ("Memory",), memory, optional=True)

    def targets(self) -> Iterator[Reference]:
        """The named targets, in order; `Catalog.targets` adds those of its selector."""
        for path, target in self.spec.written_targets():
            ref = Ref(name=target.name, namespace=target.namespace)
            yield self._refer(("spec", *path, "name"), (target.type.capitalize(),), ref)


class QueryName(NamedTuple):
    """A Query that workers have, in the store or in their files: a run looks it up when it begins."""

    name: str
    namespace: str
