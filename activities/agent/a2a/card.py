"""Reads the card of an agent, and chooses the interface by which the agent is called."""

import httpx
from a2a.client import A2ACardResolver
from a2a.client.errors import AgentCardResolutionError
from a2a.types import AgentCard, AgentInterface
from a2a.utils.constants import TransportProtocol

from ....conversation.errors import AgentFailed, AgentRejected, AgentUnavailable, KeyRefused
from ....conversation.failure import BatonError
from ....conversation.text import truncate
from ...runtime.retry import is_retryable
from ..bounded_http import Origin

WELL_KNOWN = ("/.well-known/agent-card.json", "/.well-known/agent.json")
"""Where a card stands: since version 0.3 of the protocol, and before."""

BINDINGS = (TransportProtocol.JSONRPC, TransportProtocol.HTTP_JSON)
VERSIONS = ("1.", "0.3", "0.2")
"""How the versions begin that can be spoken, the best first; 0.2 has the messages of 0.3."""


async def read_card(http: httpx.AsyncClient, url: str) -> AgentCard:
    """The card of the server at ``url``, from the first place where it has one."""
    resolver = A2ACardResolver(http, url)
    for path in WELL_KNOWN:
        try:
            return await resolver.get_agent_card(path)
        except AgentCardResolutionError as error:
            if error.status_code not in (404, 405, 410):
                raise _no_card(error, url) from None
    raise AgentFailed(f"{url} has no agent card: neither {' nor '.join(WELL_KNOWN)}")


def _no_card(error: AgentCardResolutionError, url: str) -> BatonError:
    status, text = error.status_code, truncate(str(error), 300)
    if status in (401, 403):
        return KeyRefused(f"{url} refuses to give its agent card: HTTP {status}")
    if isinstance(error.__cause__, httpx.RequestError):
        return AgentUnavailable(f"{url} can't be reached: {error.__cause__ or type(error.__cause__).__name__}")
    if status is not None and is_retryable(status):
        return AgentUnavailable(f"{url} gives no agent card now: HTTP {status}")
    return AgentRejected(f"{url} has no agent card that can be read: {text}")


def description_of(card: AgentCard) -> str:
    """What a card says of its agent: its description, and its skills with theirs."""
    skills = (": ".join(filter(None, (each.name, each.description))) for each in card.skills)
    listed = "; ".join(filter(None, skills))
    return " ".join(filter(None, (card.description, f"Skills: {listed}" if listed else "")))


def choose_interface(card: AgentCard, url: str) -> AgentInterface:
    """The interface to use: at the manifest's own address if there is one, then by version, then by the card's order.

    Raises AgentRejected if the agent speaks nothing that is known here.
    """
    known = [
        each for each in card.supported_interfaces if each.protocol_binding in BINDINGS and _rank(each) is not None
    ]
    near = [each for each in known if is_at(each, url)]
    if not known:
        spoken = ", ".join(f"{i.protocol_binding} {i.protocol_version}" for i in card.supported_interfaces) or "nothing"
        raise AgentRejected(f"the agent at {url} speaks {truncate(spoken, 200)}: none of that is supported")
    return min(near or known, key=lambda each: _rank(each) or 0)


def is_at(interface: AgentInterface, url: str) -> bool:
    """Whether an interface is at the same server as ``url``."""
    try:
        return Origin.of(interface.url) == Origin.of(url)
    except httpx.InvalidURL:
        return False


def _rank(interface: AgentInterface) -> int | None:
    version = interface.protocol_version or VERSIONS[0]
    return next((rank for rank, begin in enumerate(VERSIONS) if version.startswith(begin)), None)
