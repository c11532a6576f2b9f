"""``kind: Agent``: a prompt, a model, and tools (ARK: teams, ARK: agent execution)."""

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic.alias_generators import to_camel

from .approval import Approval
from .base import FieldError, JsonModel, Name, NameOrRef, Path, Ref, Reference
from .budget import Budget
from .client import ClientAccess, ClientRequest, ClientSettings
from .execution_engine import A2A
from .json_schema import JsonSchema
from .manifest import ContextWindow, Manifest
from .model_settings import ModelSettings
from .problems import did_you_mean
from .query import Override
from .skill import LOAD_SKILL
from .values import Function, Parameter, Partial, check_parameters, check_url

BUILT_INS: tuple[str, ...] = ("noop", "terminate", "terminate_team", "calculator", "format-text")
TERMINATING = frozenset({"terminate", "terminate_team"})


ToolKind = Literal[
    "built-in", "builtin", "custom", "http", "mcp", "agent", "team", "function", "activity", "workflow", "openapi"
]
OnError = Literal["feed", "fail", "retry"]


class AgentTool(JsonModel):
    """A tool of an agent. Without ``type`` it is the built-in tool of that name, otherwise a custom tool."""

    name: str = Field(min_length=1, description="the tool's name")
    type: ToolKind | None = Field(None, description="'built-in', 'custom' for a Tool, or the type of that Tool")
    description: str | None = Field(None, description="a description for the model, instead of the tool's own")
    functions: tuple[Function, ...] = Field((), description="filters {name: jq, value} for its result, in their order")
    partial: Partial | None = Field(None, description="{name, parameters} of arguments that the model does not choose")
    untrusted_content: bool | None = Field(None, description="whether its result is marked as untrusted")
    approval: Approval | None = Field(
        None, description="which of its calls require human approval, besides those that its Tool names"
    )
    on_error: OnError = Field(
        "feed", description="if a call fails: 'feed' the error to the model, 'fail' the turn, or 'retry' it first"
    )

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.built_in and self.own_name not in BUILT_INS:
            path = ("partial", "name") if self.partial and self.partial.name else ("name",)
            hint = did_you_mean(self.own_name, BUILT_INS)
            raise FieldError(path, f"'{self.own_name}' is not a built-in tool; {hint}")
        return self

    def generated(self, name: str) -> "AgentTool":
        """The same settings for the Tool ``name``, one of several that this entry expands to."""
        partial = self.partial.model_copy(update={"name": None}) if self.partial else None
        return self.model_copy(update={"name": name, "type": None, "description": None, "partial": partial})

    @property
    def own_name(self) -> str:
        """The name of the built-in tool or of the manifest; ``name`` is the name that the agent uses."""
        return (self.partial and self.partial.name) or self.name

    @property
    def built_in(self) -> bool:
        return self.type in ("built-in", "builtin") or (self.type is None and self.own_name in BUILT_INS)

    @property
    def terminates(self) -> bool:
        return self.built_in and self.own_name in TERMINATING


A2A_NAME = ("a2a.server/name", "ark.mckinsey.com/a2a-server-name")
A2A_ADDRESS = ("a2a.server/address", "ark.mckinsey.com/a2a-server-address")
"""Annotations of an agent that an A2AServer executes: those of ARK v0.1.31, and those of ARK's releases of 2026."""


class InlineModel(JsonModel):
    """The Model of that name; without a manifest, the model with that id on the server in the environment variables."""

    name: str = Field(min_length=1, description="the model's name")
    type: Literal["openai"] = Field("openai", description="the API of the server in the worker's environment")


class AgentSpec(ModelSettings):
    """An agent's ``spec``."""

    prompt: str | None = Field(
        None, min_length=1, description="the system prompt; required unless the agent is executed elsewhere"
    )
    description: str | None = Field(None, description="a description for people")
    model_ref: Ref | None = Field(None, description="{name, namespace} of a Model")
    model: InlineModel | None = Field(None, description="{name, type}; or write modelRef: {name}")
    tools: tuple[AgentTool, ...] = Field(
        (), description="tools {name, type}, in the order in which the model reads them"
    )
    skills: tuple[NameOrRef, ...] = Field((), description="names of Skills that its model can load")
    parameters: tuple[Parameter, ...] = Field((), description="values for the templates in prompt and tools")
    output_schema: JsonSchema | None = Field(None, description="a JSON Schema of its final answer")
    execution_engine: Ref | None = Field(
        None,
        description="{name, namespace} of the ExecutionEngine that executes it; 'a2a' for an agent of an A2AServer",
    )
    max_iterations: int = Field(25, ge=1, description="the maximum number of model calls in a turn")
    context_window: ContextWindow | None = Field(None, description="how much of the conversation its model reads")
    budget: Budget | None = Field(None, description="limits for everything below it in one run")
    overrides: tuple[Override, ...] = Field(
        (), description="headers for its model and servers, as {resourceType, headers, labelSelector}"
    )
    on_tools_unavailable: Literal["continue", "fail"] | None = Field(
        None,
        description="if its MCP server is unavailable when the run starts: 'continue' without its tools, or 'fail'",
    )
    parallel_tool_calls: bool = Field(False, description="true to execute the tool calls of a message concurrently")
    clients: ClientAccess | None = Field(
        None, description="what the clients of queries may bring, as {tools, settings, onOtherSettings}; else nothing"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.model_ref and self.model:
            raise FieldError(("modelRef",), "can't be combined with model: keep one of them")
        names = [tool.name for tool in self.tools]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise FieldError(("tools",), f"'{twice}' appears twice: a model can't tell them apart")
        skills = [skill.name for skill in self.skills]
        if twice := next((name for name in skills if skills.count(name) > 1), None):
            raise FieldError(("skills",), f"'{twice}' appears twice")
        if skills and LOAD_SKILL in names:
            raise FieldError(("tools",), f"'{LOAD_SKILL}' is the tool that loads skills: give the tool another name")
        check_parameters(self.parameters, "prompt", self.prompt or "")
        return self


class Agent(Manifest):
    """An agent: a model with a prompt and tools."""

    kind: Literal["Agent"] = "Agent"
    spec: AgentSpec = Field(description="the agent's prompt, model and tools")

    @model_validator(mode="after")
    def _executable(self) -> Self:
        if not (self.spec.prompt or self.is_remote):
            raise FieldError(("spec", "prompt"), "is missing: an agent needs a system prompt")
        if self.spec.skills and self.is_remote:
            raise FieldError(("spec", "skills"), "can't be used by an agent that is executed elsewhere: remove it")
        if self.is_remote and (settings := [*self.spec.chosen]):
            wrong = "can't be used by an agent that is executed elsewhere: remove it"
            raise FieldError(("spec", to_camel(settings[0])), wrong)
        if self.is_a2a:
            self._check_annotations()
        return self

    def _check_annotations(self) -> None:
        path, address = self._annotation(A2A_ADDRESS)
        if address:
            try:
                check_url(address)
            except ValueError as error:
                raise FieldError(path, str(error)) from None
        elif not self._annotation(A2A_NAME)[1]:
            text = f"is missing: the annotation '{A2A_NAME[0]}' names the agent's A2AServer"
            raise FieldError(("metadata", "annotations"), text)

    @property
    def is_remote(self) -> bool:
        """Whether it is executed elsewhere: by an ExecutionEngine or an A2AServer."""
        return self.spec.execution_engine is not None or self.is_a2a

    @property
    def is_a2a(self) -> bool:
        """Whether it is an agent of an A2AServer: by its engine, or without one by its annotations."""
        if engine := self.spec.execution_engine:
            return engine.name == A2A
        return bool(self._annotation(A2A_NAME)[1] or self._annotation(A2A_ADDRESS)[1])

    @property
    def a2a_address(self) -> str | None:
        """The address of its server, if its annotations contain it."""
        return self._annotation(A2A_ADDRESS)[1]

    @property
    def without_prompt(self) -> "Agent":
        """The agent without its prompt, for an executor that receives the prompt separately."""
        return self.model_copy(update={"spec": self.spec.model_copy(update={"prompt": None})})

    def described(self, description: str) -> "Agent":
        """The agent with another description."""
        return self.model_copy(update={"spec": self.spec.model_copy(update={"description": description})})

    def with_tools(self, tools: tuple[AgentTool, ...]) -> "Agent":
        """The agent with other tools."""
        return self.model_copy(update={"spec": self.spec.model_copy(update={"tools": tools})})

    @property
    def client_access(self) -> ClientAccess:
        """What the clients of its queries may bring."""
        return self.spec.clients or ClientAccess()

    def refusals(self, client: ClientRequest) -> Iterator[tuple[Path, str]]:
        """Why a query with a client's tools and settings is refused: the place in ``client``, and the reason."""
        access = self.client_access
        if client.tools and self.is_remote:
            yield ("tools",), f"{self.id} is executed elsewhere, where no tools of clients can be used"
        elif client.tools and not access.tools:
            yield ("tools",), f"{self.id} takes no tools of clients: its manifest has no spec.clients.tools: true"
        for name in access.refused(client.settings):
            allowed = ", ".join(access.allowed_settings) or "none"
            yield (
                ("settings", name),
                f"{self.id} does not let clients choose this; spec.clients.settings of its manifest allows: {allowed}",
            )

    def colliding_tools(self, client: ClientRequest) -> Iterator[tuple[Path, str]]:
        """The tools of a client that have the name of one of its own: the place in ``client``, and the problem."""
        names = {tool.name for tool in self.spec.tools} | ({LOAD_SKILL} if self.spec.skills else set())
        for index, tool in enumerate(client.tools):
            if tool.name in names:
                yield ("tools", index, "name"), f"'{tool.name}' is the name of a tool that {self.id} has itself"

    def with_client_settings(self, settings: ClientSettings) -> "Agent":
        """The agent with the settings of a client in place of its own, except ``instructions``. They were admitted."""
        fields = {name: getattr(settings, name) for name in settings.chosen}
        if settings.output_schema is not None:
            fields["output_schema"] = settings.output_schema
        return self.model_copy(update={"spec": self.spec.model_copy(update=fields)})

    def executor(self) -> Reference | None:
        """The ExecutionEngine or the A2AServer; optional for an A2AServer whose address is known without a manifest."""
        engine, (path, name) = self.spec.execution_engine, self._annotation(A2A_NAME)
        if not self.is_a2a:
            return self._refer(("spec", "executionEngine", "name"), ("ExecutionEngine",), engine) if engine else None
        optional = self.a2a_address is not None
        return Reference(path, ("A2AServer",), self.namespace, name, optional) if name else None

    def _annotation(self, names: tuple[str, ...]) -> tuple[Path, str | None]:
        """The first of these annotations that the manifest has, and its path."""
        annotations = self.metadata.annotations
        name = next((name for name in names if annotations.get(name)), names[0])
        return ("metadata", "annotations", name), annotations.get(name) or None

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Values for its prompt and its tools."""
        return self.spec.parameters

    @property
    def can_terminate(self) -> bool:
        return any(tool.terminates for tool in self.spec.tools)

    def _references(self) -> Iterator[Reference]:
        yield from super()._references()
        if not self.is_a2a:
            yield self.model_reference()
        yield from (reference for _, reference in self.tools() if reference)
        for index, skill in enumerate(self.spec.skills):
            yield self._refer(("spec", "skills", index), ("Skill",), skill)
        if executor := self.executor():
            yield executor

    def tools(self) -> Iterator[tuple[AgentTool, Reference | None]]:
        """Its tools with the references to their manifests; None for a built-in tool."""
        for index, tool in enumerate(self.spec.tools):
            path: Path = ("spec", "tools", index, *(("partial",) if tool.partial and tool.partial.name else ()), "name")
            yield tool, None if tool.built_in else Reference(path, ("Tool",), self.namespace, tool.own_name)

    def model_reference(self) -> Reference:
        """The Model of this agent; optional if the server in the environment variables can be used instead."""
        if self.spec.model_ref:
            return self._refer(("spec", "modelRef", "name"), ("Model",), self.spec.model_ref)
        name = self.spec.model.name if self.spec.model else DEFAULT_MODEL
        return Reference(("spec", "model", "name"), ("Model",), self.namespace, name, optional=True)


DEFAULT_MODEL: Name = "default"
