"""The base of servers that stand in for a model's API in which user and assistant take turns, and what it refuses."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.routing import Route

from baton.starter.scripted_model import serve_in_thread
from baton.testing import Reply

Json = dict[str, Any]

CHUNK = 40
"""Characters in a piece of a stream."""


class StandInReply(Reply):
    """An answer or a failure in the words of the API. ``cached`` are tokens of the prompt that come from the cache."""

    cached: int = 0

    @classmethod
    def of(cls, reply: Reply) -> "StandInReply":
        """The same reply."""
        return reply if isinstance(reply, cls) else cls(**reply.model_dump())


class StandIn:
    """A server. ``answer`` gives the reply to a request's body; ``requests`` and ``headers`` are of all requests."""

    def __init__(self, *routes: Route) -> None:
        self.answer: Callable[[Json], Reply] = lambda _: StandInReply(text="Because.")
        self.requests: list[Json] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self._app = Starlette(routes=[*routes])

    def answers(self, *replies: Reply) -> None:
        """Gives the replies one after the other, and the last one from then on."""
        self.answer = lambda _: replies[min(len(self.requests), len(replies)) - 1]

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        """Serves from a thread while the block runs, and yields the URL."""
        with serve_in_thread(self._app) as self.url:
            yield self.url


class Part(NamedTuple):
    """A part of a message: a ``text``, a tool ``call`` or a ``result``, with its text or its id."""

    kind: str
    value: str


def wrong_in(messages: Sequence[tuple[str, Sequence[Part]]], *, tools: bool) -> str | None:
    """The first thing that such an API would refuse; None for a good conversation."""
    if [role for role, _ in messages] != [("user", "assistant")[place % 2] for place in range(len(messages))]:
        return "roles must alternate between user and assistant, and the user begins"
    if not messages or messages[-1][0] != "user":
        return "this model does not support assistant message prefill"
    parts = [part for _, parts in messages for part in parts]
    if not all(parts for _, parts in messages) or any(not part.value.strip() for part in parts):
        return "text content blocks must be non-empty"
    if any(part.kind in ("call", "result") for part in parts) and not tools:
        return "requests which include tool calls must define tools"
    return _unpaired(messages)


def _unpaired(messages: Sequence[tuple[str, Sequence[Part]]]) -> str | None:
    calls: list[str] = []
    for (_, before), (_, parts) in zip([("", ()), *messages], messages, strict=False):
        call_ids, result_ids = [*_ids("call", before)], [*_ids("result", parts)]
        if sorted(call_ids) != sorted(result_ids):
            return "each tool call must have its result in the next message"
        if any(part.kind == "text" for part in parts[: len(result_ids)]):
            return "tool results must come first"
        calls += call_ids
    return "tool call ids must be unique" if len({*calls}) < len(calls) else None


def _ids(kind: str, parts: Iterable[Part]) -> Iterable[str]:
    return (part.value for part in parts if part.kind == kind)
