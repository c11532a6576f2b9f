"""OpenAI's protocols below ``/v1``: models, chat completions and responses."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...resources.base import JsonObject
from .openai_chat import Chat
from .openai_common import error_form
from .openai_responses import ResponsesApi
from .protocol import Protocol, caller_of
from .runs import Runs
from .targets import ServedTarget, Targets


class Models:
    """The served teams and agents as models."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets

    @property
    def routes(self) -> list[Route]:
        """Their routes. The id of a model has a slash."""
        return [Route("/v1/models", self.list), Route("/v1/models/{model:path}", self.get)]

    async def list(self, request: Request) -> Response:
        """What the caller may ask."""
        data = [_model(target) for target in await self._targets.of(caller_of(request))]
        return JSONResponse({"object": "list", "data": data})

    async def get(self, request: Request) -> Response:
        """One of them, also by its name alone."""
        return JSONResponse(_model(await self._targets.find(caller_of(request), request.path_params["model"])))


def _model(target: ServedTarget) -> JsonObject:
    return {
        "id": target.id,
        "object": "model",
        "created": 0,
        "owned_by": target.namespace,
        "name": target.name,
        "description": target.description,
    }


def protocol(targets: Targets, runs: Runs) -> Protocol:
    """OpenAI's protocols."""
    routes = [*Models(targets).routes, *Chat(targets, runs).routes, *ResponsesApi(targets, runs).routes]
    return Protocol("/v1/", routes, error_form)
