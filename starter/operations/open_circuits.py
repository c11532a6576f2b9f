"""The check of ``baton doctor`` for circuit breakers: the worker of this machine says which of its own are open."""

import httpx

from ...activities.process.settings import Settings
from .checks import CheckResult, CheckResults

HINT = "make sure that its server answers; the calls that wait go on by themselves"


async def open_circuits(settings: Settings) -> CheckResults:
    """The circuit breakers that are not closed. Nothing where no worker answers health checks here."""
    if settings.health_address is None:
        return
    host, port = settings.health_address
    at = "127.0.0.1" if host == "*" else f"[{host}]" if ":" in host else host
    try:
        async with httpx.AsyncClient(trust_env=False) as http:
            found: dict[str, str] = (await http.get(f"http://{at}:{port}/circuits")).json()
    except (httpx.HTTPError, ValueError):  # there is no worker here, or an older one
        return
    for name, state in found.items():
        yield CheckResult("circuits", False, f"the circuit breaker of {name} is {state}", HINT)
    if not found:
        yield CheckResult("circuits", True, "no circuit breaker is open")
