"""Agent cards: what clients of the A2A protocol read about a team or an agent before they ask it."""

from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...installation import version
from .errors import NotFoundError
from .protocol import caller_of
from .settings import GatewaySettings
from .targets import ServedTarget, Targets

PREFIX = "/a2a"

WELL_KNOWN = ("/.well-known/agent-card.json", "/.well-known/agent.json")
"""The paths of an agent card: since version 0.3 of the protocol, and before."""

BINDINGS = (("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "0.3"))
"""The bindings and versions that are served, all at the same URL."""

INPUT_MODES = (
    "text/plain",
    "application/json",
    "image/png",
    "image/jpeg",
    "image/gif",
    "image/webp",
    "application/pdf",
)
OUTPUT_MODES = ("text/plain", "application/json")

SCHEME = "key"
"""The name of the security scheme in a card."""


class Cards:
    """The agent cards."""

    def __init__(self, targets: Targets, settings: GatewaySettings) -> None:
        self._targets = targets
        self._settings = settings

    async def of_target(self, request: Request) -> Response:
        """The card of a team or an agent."""
        target = await self._targets.find(caller_of(request), target_in(request))
        return self._response(request, target)

    async def of_gateway(self, request: Request) -> Response:
        """The card of the configured target, or of the only one. Raises NotFoundError that lists the cards."""
        caller = caller_of(request)
        if self._settings.a2a_agent:
            return self._response(request, await self._targets.find(caller, self._settings.a2a_agent))
        served = await self._targets.of(caller)
        if len(served) == 1:
            return self._response(request, served[0])
        if not served:
            self._targets.check_known()
        listed = ", ".join(f"{self._url(request, target)}{WELL_KNOWN[0]}" for target in served) or "none"
        raise NotFoundError(
            f"this gateway serves several agents, each with a card of its own, and BATON_GATEWAY_A2A_AGENT names none "
            f"for this address: {listed}"
        )

    def _response(self, request: Request, target: ServedTarget) -> Response:
        return JSONResponse(agent_card_to_dict(self._card(request, target)), headers={"vary": "Authorization, Host"})

    def _url(self, request: Request, target: ServedTarget) -> str:
        base = self._settings.url or str(request.base_url)
        return f"{base.rstrip('/')}{PREFIX}/{target.id}"

    def _card(self, request: Request, target: ServedTarget) -> AgentCard:
        url = self._url(request, target)
        strategy = getattr(target.manifest.spec, "strategy", None)
        card = AgentCard(
            name=target.name,
            description=target.description,
            version=version(),
            supported_interfaces=[
                AgentInterface(url=url, protocol_binding=binding, protocol_version=number)
                for binding, number in BINDINGS
            ],
            capabilities=AgentCapabilities(streaming=True, push_notifications=True, extended_agent_card=False),
            default_input_modes=INPUT_MODES,
            default_output_modes=OUTPUT_MODES,
            skills=[
                AgentSkill(
                    id=target.name,
                    name=target.name,
                    description=target.description,
                    tags=[target.kind, *([strategy] if strategy else [])],
                )
            ],
        )
        if self._settings.has_keys:
            bearer = HTTPAuthSecurityScheme(scheme="bearer", description="a key of this gateway, or a token")
            card.security_schemes[SCHEME].CopyFrom(SecurityScheme(http_auth_security_scheme=bearer))
            card.security_requirements.append(SecurityRequirement(schemes={SCHEME: StringList()}))
        return card


def target_in(request: Request) -> str:
    """The id of the target in the path of a request."""
    names = ("kind", "namespace", "name")
    return "/".join(str(request.path_params[name]) for name in names if name in request.path_params)
