"""The application of the gateway: the routes of all protocols behind one guard."""

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from temporalio.client import Client
from temporalio.service import RPCError

from ...contracts.identity import IdentityKeys
from ...temporal.search_attributes import describe_namespace
from ..web_console import page
from . import a2a, ag_ui, api, ark, manifests, mcp_server, openai_models
from .a2a_push import PushNotifications
from .access import Access
from .errors import GatewayError, as_gateway_error
from .limits import Guard
from .oidc import OidcTokens
from .protocol import Protocol
from .runs import Runs
from .settings import GatewaySettings
from .targets import Targets

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Gateway:
    """What the routes of all protocols share. It has no state but caches."""

    client: Client
    settings: GatewaySettings
    targets: Targets
    runs: Runs
    environ: Mapping[str, str]

    @classmethod
    def of(cls, client: Client, environ: Mapping[str, str] = os.environ) -> "Gateway":
        """The gateway with the settings in environment variables. Raises SettingsError."""
        settings = GatewaySettings.of(environ)
        IdentityKeys.of(environ)  # raises SettingsError now, and not at the first decision
        targets = Targets(client, settings, environ)
        return cls(client, settings, targets, Runs(client, targets, environ), environ)


def protocols_of(gateway: Gateway) -> Sequence[Protocol]:
    """All protocols that are served; that of a path is the first with a prefix of it."""
    private = gateway.settings.allow_private_hosts
    pushes = PushNotifications(gateway.client, gateway.runs, gateway.environ, private=private)
    return [
        a2a.protocol(gateway.targets, gateway.runs, gateway.settings, pushes),
        ag_ui.protocol(gateway.targets, gateway.runs),
        mcp_server.protocol(gateway.targets, gateway.runs, gateway.settings),
        *ark.protocols(gateway.targets, gateway.runs, gateway.client),
        openai_models.protocol(gateway.targets, gateway.runs),
        Protocol(page.PREFIX, page.routes(), api.error_form),
        api.protocol(
            gateway.targets,
            gateway.runs,
            gateway.settings,
            manifests.operations(gateway.targets, gateway.runs, gateway.settings, gateway.client, gateway.environ),
        ),
    ]


def create_app(gateway: Gateway) -> ASGIApp:
    """The ASGI application. Raises SettingsError."""
    tokens = OidcTokens(gateway.settings) if gateway.settings.issuer else None
    protocols = protocols_of(gateway)
    routes: list[BaseRoute] = [Route("/healthz", _healthz), Route("/readyz", _readyz_of(gateway.client))]
    routes += [route for protocol in protocols for route in protocol.routes]

    def error_form(path: str, error: GatewayError) -> Response:
        form = next((each.error_form for each in protocols if path.startswith(each.prefix)), api.error_form)
        response = form(error)
        if error.retry_after is not None:
            response.headers["retry-after"] = str(max(1, round(error.retry_after)))
        if error.methods:
            response.headers["allow"] = ", ".join(sorted(error.methods))
        if error.status == 401:
            response.headers["www-authenticate"] = "Bearer"
        return response

    @contextlib.asynccontextmanager
    async def lifespan(_: Router) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for protocol in protocols:
                if protocol.lifespan:
                    await stack.enter_async_context(protocol.lifespan())
            yield

    # Starlette's application would respond to errors itself, in its own form.
    router = Router(routes, lifespan=lifespan)
    return Guard(_Errors(router), gateway.settings, Access(gateway.settings, tokens), error_form)


class _Errors:
    """Turns the exceptions of routes into GatewayErrors, for which the guard has the response."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        scope["app"] = self  # so that routes raise an HTTPException for an unknown path or method
        try:
            await self._router(scope, receive, noting)
        except ClientDisconnect:
            return
        except Exception as error:
            if started:
                _log.warning("a response was cut off: %s: %s", type(error).__name__, error)
                raise
            translated = as_gateway_error(error)
            if translated is None:
                raise
            if translated.status == 405:
                translated.methods = self._methods(scope)
            raise translated from error

    def _methods(self, scope: Scope) -> set[str]:
        """The methods of all routes with the path of a request; Starlette names only those of the first one."""
        routes = [route for route in self._router.routes if isinstance(route, Route)]
        found = [route.methods or () for route in routes if route.matches(scope)[0] != Match.NONE]
        return {method for methods in found for method in methods}


async def _healthz(_: Request) -> Response:
    return PlainTextResponse("alive\n")


def _readyz_of(client: Client) -> Callable[[Request], Awaitable[Response]]:
    async def readyz(_: Request) -> Response:
        try:
            await describe_namespace(client)
        except RPCError as error:
            return JSONResponse({"temporal": error.status.name}, 503)
        return JSONResponse({"temporal": "ok"})

    return readyz
