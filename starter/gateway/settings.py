"""The settings of the gateway, read from environment variables. All invalid ones are reported at once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, ValidationError

from ...contracts.settings import SettingsError


def _list(text: object) -> object:
    """``a,b`` as a list."""
    return [part.strip() for part in text.split(",") if part.strip()] if isinstance(text, str) else text


Names = Annotated[tuple[str, ...], BeforeValidator(_list)]


class GatewaySettings(BaseModel):
    """The settings of all processes of a gateway.

    ``namespaces`` are those of manifests of which all teams and agents are served, ``*`` for all; elsewhere only those
    with the label ``baton/serve: "true"``. ``hosts`` are the values of the header Host that are accepted, besides
    those of loopback addresses, and ``origins`` those of Origin. ``url`` is the address that clients use, if a proxy is
    before the gateway. Of tokens, the claim ``account_claim`` has the ServiceAccount. ``a2a_agent``
    is the team or agent whose agent card is at the root. The limits are for each caller.
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
    max_body: PositiveInt = Field(32_000_000, validation_alias="BATON_GATEWAY_MAX_BODY")
    max_streams: PositiveInt = Field(1_000, validation_alias="BATON_GATEWAY_MAX_STREAMS")
    requests_per_minute: PositiveInt = Field(6_000, validation_alias="BATON_GATEWAY_RATE")

    @property
    def has_keys(self) -> bool:
        """Whether callers need a key or a token."""
        return self.keys is not None or self.issuer is not None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """The settings in environment variables. Raises SettingsError that names all invalid ones."""
        given = {name: value for name, value in environ.items() if name.startswith("BATON_GATEWAY_") and value}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            problems = (f"{each['loc'][0]}: {each['msg']}" for each in error.errors(include_input=False))
            raise SettingsError("; ".join(problems)) from None
