"""What OpenAI's protocols share: the form of errors, how runs end, and what a request may ask for."""

from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...contracts.status import Status
from ..history.events import WaitEndedEvent, WaitStartedEvent
from .errors import BadRequestError, GatewayError

RUN_HEADER = "x-baton-run"
"""The response header with the id of the run, by which ``/runs`` shows and controls it."""

CONTENT_FILTER: Literal["content_filter"] = "content_filter"


def error_body(error: GatewayError) -> dict[str, dict[str, Any]]:
    """An error in OpenAI's form."""
    status = int(error.status)
    kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
    code = "model_not_found" if error.code == "not_found" and error.param == "model" else error.code
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": code}}


def error_form(error: GatewayError) -> Response:
    """The response for an error."""
    return JSONResponse(error_body(error), int(error.status))


class RunFailedError(GatewayError):
    """The run has failed."""

    status = 500
    code = "run_failed"


def failed_run(run: str, message: str) -> Response:
    """The response for a run that has failed. Clients must not try again: that would start another run."""
    response = error_form(RunFailedError(message))
    response.headers[RUN_HEADER] = run
    response.headers["x-should-retry"] = "false"
    return response


def is_incomplete(status: Status) -> Literal["content_filter", "max_output_tokens"] | None:
    """Why the model has cut its answer off; None if it is complete, or the run has failed otherwise.

    OpenAI's clients know no other reasons: a budget, a timeout and a number of turns are limits of the run, not of the
    answer, so a run that reaches one has failed, and its error says so.
    """
    if status.phase == "Completed" and status.finish_reason == "length":
        return "max_output_tokens"
    failure = status.failure.type if status.failure and status.phase == "Failed" else None
    match failure:
        case "ContentFiltered":
            return CONTENT_FILTER
        case "AnswerTooLong":
            return "max_output_tokens"
    return None


def turns_shown(request: Request, allowed: tuple[str, ...]) -> str:
    """The query parameter ``turns``, by default the first value that is allowed. Raises BadRequestError."""
    value = request.query_params.get("turns", allowed[0])
    if value not in allowed:
        raise BadRequestError(f"turns: it has to be {' or '.join(allowed)}", param="turns")
    return value


def wait_text(run: str, event: WaitStartedEvent | WaitEndedEvent) -> str:
    """A line about a wait of the run, and how a person ends it."""
    if isinstance(event, WaitEndedEvent):
        return f"the wait {event.wait} has ended: {event.outcome}"
    match event.kind:
        case "approval" | "budget":
            what = f"a call of {event.tool}" if event.tool else "more budget"
            return f"waiting for approval of {what}: POST /runs/{run}/approve with call {event.wait}"
        case "question":
            return f"waiting for a reply of {event.speaker}: POST /runs/{run}/reply to {event.wait}"
    return f"waiting: {event.kind}"
