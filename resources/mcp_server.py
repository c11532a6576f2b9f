"""``kind: MCPServer``: a server with tools that speaks the Model Context Protocol (ARK: queries, MCP tools)."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from .base import Duration, FieldError, JsonModel, Name, NoEffect, Reference, Text, parse_duration
from .manifest import CircuitBreaker, Manifest, Questions
from .values import Address, Headers, KeyRef, ValueFrom, ValueSource


class TokenSecretRef(JsonModel):
    """A Secret with an OAuth token. With ``refreshTokenKey``, workers refresh it and store the new one themselves."""

    name: Name = Field(description="the Secret's name")
    access_token_key: Text = Field("access_token", description="the key of the access token")
    refresh_token_key: Text | None = Field(None, description="the key of the refresh token: workers refresh the token")
    expires_at_key: Text | None = Field(
        None, description="the key of the time of expiry, as in '2027-01-31T10:00:00Z' or in seconds since 1970"
    )
    client_id_key: Text | None = Field(None, alias="clientIDKey", description="the key of the client's id")
    client_secret_key: Text | None = Field(None, description="the key of the client's secret")

    def source(self, key: str | None, *, optional: bool = True) -> ValueSource | None:
        """The value source of one of its keys; None without a key."""
        ref = KeyRef(name=self.name, key=key, optional=optional) if key else None
        return ValueSource(value_from=ValueFrom(secret_key_ref=ref)) if ref else None


class Authorization(JsonModel):
    """How the worker authenticates to an MCP server."""

    token_secret_ref: TokenSecretRef = Field(description="the Secret with the token")
    token_endpoint: Address | None = Field(
        None, description="where tokens are refreshed, as {value: ADDRESS}; by default the one that the server names"
    )

    @model_validator(mode="after")
    def _something_to_refresh(self) -> Self:
        if self.token_endpoint and self.token_secret_ref.refresh_token_key is None:
            raise FieldError(("tokenEndpoint",), "needs tokenSecretRef.refreshTokenKey: there is nothing to refresh")
        if self.token_endpoint and self.token_endpoint.is_from_run:
            raise FieldError(("tokenEndpoint",), "can't be chosen by a run: a refresh token is sent there")
        return self

    @property
    def token(self) -> ValueSource | None:
        """The source of the access token."""
        return self.token_secret_ref.source(self.token_secret_ref.access_token_key, optional=False)


def _as_variables(value: object) -> object:
    """Converts environment variables in Kubernetes' form, ``{name, valueFrom}``, to the form of headers."""
    if not isinstance(value, list):
        return value
    return [
        {"name": item.get("name"), "value": {"valueFrom": item["valueFrom"]}}
        if isinstance(item, dict) and "valueFrom" in item and "value" not in item
        else item
        for item in value
    ]


Variables = Annotated[Headers, BeforeValidator(_as_variables)]
"""Environment variables, as a list of ``{name, value}`` or ``{name, valueFrom}``, or as a mapping."""


class MCPServerSpec(JsonModel):
    """The ``spec`` of an MCPServer: where it is, or the command that starts it."""

    address: Address | None = Field(None, description="the server's address, as {value: ADDRESS}")
    command: Text | None = Field(None, description="a program on the worker's machine that is the server, over stdio")
    args: tuple[str, ...] = Field((), description="the arguments of command")
    env: Variables = Field((), description="environment variables of command, in addition to PATH, HOME and the like")
    transport: Literal["http", "sse"] = Field("http", description="'http' for streamable HTTP, or 'sse'")
    headers: Headers = Field((), description="headers of each request")
    authorization: Authorization | None = Field(None, description="{tokenSecretRef} of a bearer token")
    timeout: Duration = Field("30s", description="how long an answer may take, such as '30s'")
    tool_call_timeout: Duration | None = Field(
        None, description="how long the answer of a tool may take; by default as long as timeout"
    )
    poll_interval: Annotated[Duration | None, NoEffect("each run lists the tools when it begins")] = Field(
        None, description="how often its tools are listed again"
    )
    circuit_breaker: CircuitBreaker | None = Field(
        None, description="{failures, window, openFor, onOpen}: opens a circuit breaker if a server fails often"
    )
    description: str | None = Field(None, description="a description for people")
    questions: Questions | None = Field(
        None, description="lets people answer questions of the server; {} for all defaults"
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.command and self.address:
            raise FieldError(("command",), "can't be combined with address: keep one of them")
        if not (self.command or self.address):
            raise FieldError(("address",), "is missing: an MCPServer needs an address or a command")
        for field in ("transport", "headers", "authorization") if self.command else ("args", "env"):
            if field in self.model_fields_set:
                raise FieldError((field,), f"is for a server with {'an address' if self.command else 'a command'}")
        return self


class MCPServer(Manifest):
    """A server whose tools agents can use."""

    kind: Literal["MCPServer"] = "MCPServer"
    spec: MCPServerSpec = Field(description="where the server is")

    @property
    def address(self) -> ValueSource | None:
        """The server's address; None if it is a process."""
        return self.spec.address

    @property
    def timeout(self) -> float:
        """The timeout of a response, in seconds."""
        return parse_duration(self.spec.timeout).total_seconds()

    @property
    def call_timeout(self) -> float:
        """The timeout of a tool call, in seconds."""
        return parse_duration(self.spec.tool_call_timeout or self.spec.timeout).total_seconds()

    def _references(self) -> Iterator[Reference]:
        yield from super()._references()
        if self.spec.authorization:
            name = self.spec.authorization.token_secret_ref.name
            yield Reference(("spec", "authorization", "tokenSecretRef", "name"), ("Secret",), self.namespace, name)
