"""The settings of the gateway, read from environment variables. All invalid ones are reported at once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)

from ...contracts.settings import PRIVATE_HOSTS, SettingsError


def _list(text: object) -> object:
    """``a,b`` as a list."""
    return [part.strip() for part in text.split(",") if part.strip()] if isinstance(text, str) else text


Names = Annotated[tuple[str, ...], BeforeValidator(_list)]


WebAddress = Annotated[str, Field(pattern="^https?://", max_length=2_000)]
"""An address to which a page links: none that runs a script."""


def _is_gateways(name: str) -> bool:
    return name.startswith("BATON_GATEWAY_") or name == PRIVATE_HOSTS


class GatewaySettings(BaseModel):
    """The settings of all processes of a gateway.

    ``namespaces`` are those of manifests of which all teams and agents are served, ``*`` for all; elsewhere only those
    with the label ``baton/serve: "true"``. ``hosts`` are the values of the header Host that are accepted, besides
    those of loopback addresses, and ``origins`` those of Origin. ``url`` is the address that clients use, if a proxy is
    before the gateway. Of tokens, the claim ``account_claim`` has the ServiceAccount. ``a2a_agent``
    is the team or agent whose agent card is at the root. The limits are for each caller. The console links to
    Temporal's UI at ``temporal_ui``, and to traces by ``trace_link``, in which ``{run}`` stands for the id of a run,
    and ``{conversation}`` for what its spans have as ``gen_ai.conversation.id``.

    In seconds: within ``request_timeout`` a request has to be complete, from the first byte of the connection or the
    last response; a client that reads nothing for ``send_timeout`` is disconnected; every ``keys_reload`` the file of
    keys is looked at, which may change while the gateway runs; after ``oidc_refresh`` an unknown key leads to another
    look at the issuer's keys, as any client may send one.
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    namespaces: Names = Field((), validation_alias="BATON_GATEWAY_NAMESPACES")
    keys: Path | None = Field(None, validation_alias="BATON_GATEWAY_KEYS")
    hosts: Names = Field((), validation_alias="BATON_GATEWAY_HOSTS")
    origins: Names = Field((), validation_alias="BATON_GATEWAY_ORIGINS")
    url: str | None = Field(None, validation_alias="BATON_GATEWAY_URL")
    a2a_agent: str | None = Field(None, validation_alias="BATON_GATEWAY_A2A_AGENT")
    issuer: str | None = Field(None, validation_alias="BATON_GATEWAY_OIDC_ISSUER")
    audience: str | None = Field(None, validation_alias="BATON_GATEWAY_OIDC_AUDIENCE")
    account_claim: str | None = Field(None, validation_alias="BATON_GATEWAY_OIDC_ACCOUNT_CLAIM")
    name_claim: str = Field("sub", validation_alias="BATON_GATEWAY_OIDC_NAME_CLAIM")
    groups_claim: str = Field("groups", validation_alias="BATON_GATEWAY_OIDC_GROUPS_CLAIM")
    temporal_ui: WebAddress | None = Field(None, validation_alias="BATON_GATEWAY_TEMPORAL_UI_URL")
    trace_link: WebAddress | None = Field(None, validation_alias="BATON_GATEWAY_TRACE_URL")
    max_body: PositiveInt = Field(32_000_000, validation_alias="BATON_GATEWAY_MAX_BODY")
    max_streams: PositiveInt = Field(1_000, validation_alias="BATON_GATEWAY_MAX_STREAMS")
    requests_per_minute: PositiveInt = Field(6_000, validation_alias="BATON_GATEWAY_RATE")
    request_timeout: PositiveFloat = Field(30.0, validation_alias="BATON_GATEWAY_REQUEST_TIMEOUT")
    send_timeout: PositiveFloat = Field(60.0, validation_alias="BATON_GATEWAY_SEND_TIMEOUT")
    keys_reload: NonNegativeFloat = Field(5.0, validation_alias="BATON_GATEWAY_KEYS_RELOAD")
    allow_private_hosts: bool = Field(False, validation_alias=PRIVATE_HOSTS)
    oidc_refresh: NonNegativeFloat = Field(30.0, validation_alias="BATON_GATEWAY_OIDC_REFRESH")

    @property
    def has_keys(self) -> bool:
        """Whether callers need a key or a token."""
        return self.keys is not None or self.issuer is not None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """The settings in environment variables. Raises SettingsError that names all invalid ones."""
        given = {name: value for name, value in environ.items() if value and _is_gateways(name)}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            problems = (f"{each['loc'][0]}: {each['msg']}" for each in error.errors(include_input=False))
            raise SettingsError("; ".join(problems)) from None
