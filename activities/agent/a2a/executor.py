"""Agents of A2AServers: finds the agent's card, calls it, and turns the answer into a message (ARK: A2A execution)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import httpx
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.types import AgentCard, TaskState

from ....conversation.errors import AgentFailed, AgentRejected, AgentUnavailable, AuthorizationRequired, CallTimeout
from ....conversation.messages.message import Message
from ....conversation.text import truncate
from ....resources.a2a_server import A2AServer
from ...context.executor import Executor
from ...context.value_resolver import ValueResolver
from ...runtime.call_spans import trace_headers
from ...runtime.heartbeat import is_withdrawn
from ..bounded_http import CONNECT_SECONDS, BoundedTransport, CurrentHeaders, Origin, endpoint_of, new_pool
from ..executor import Execution
from .call import A2ACall
from .card import BINDINGS, choose_interface, description_of, is_at, read_card
from .progress import Progress

CARD_SECONDS = 30.0
DESCRIBE_SECONDS = 5.0
CANCEL_SECONDS = 10.0
MAX_CHECK = 300
"""Characters that a check tells of a card."""


class A2AExecutor:
    """An ``AgentExecutor``. ``private`` allows agents in the worker's own network whose address only a card says."""

    def __init__(self, *, private: bool = False) -> None:
        self._pool = new_pool()
        self._private = private

    async def execute(self, execution: Execution, on_text: Callable[[str], None]) -> list[Message]:
        """The agent's answer, as one message."""
        progress, seconds, agent = Progress(on_text), execution.seconds, execution.agent
        async with self._client(execution.executor, execution.values, seconds) as (client, card):
            call = A2ACall(client, execution, progress, execution.executor.id)
            running = asyncio.create_task(call.run())
            try:
                async with asyncio.timeout(seconds):
                    await asyncio.shield(running)
            except TimeoutError:
                await call.cancel()
                raise CallTimeout(f"agent {agent.name} has not finished in {seconds:g} s", retryable=False) from None
            except asyncio.CancelledError:
                if is_withdrawn():
                    await call.cancel()
                raise
            finally:
                running.cancel()
                await asyncio.wait([running])
        asks = isinstance(execution.executor, A2AServer) and execution.executor.spec.questions is not None
        _check_state(progress, agent.name, asks=asks)
        text = progress.text or "(no text)"
        model = card.name[:100] or None
        return [Message(role="assistant", content=text, name=agent.name, model=model, remote=progress.place(agent.id))]

    @contextlib.asynccontextmanager
    async def _client(
        self, server: Executor, values: ValueResolver, seconds: float
    ) -> AsyncIterator[tuple[Client, AgentCard]]:
        """A client of the agent, by the interface that its card offers.

        An interface at another server than the manifest's gets none of the manifest's headers.
        """
        url, headers = endpoint_of(server, values)
        transport = BoundedTransport(self._pool, Origin.trusted(url, server, values), private=self._private)
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        auth = CurrentHeaders(server, values, headers)
        async with httpx.AsyncClient(transport=transport, timeout=timeout, auth=auth, headers=trace_headers()) as http:
            card = await _card(http, url, min(seconds, CARD_SECONDS))
            interface = choose_interface(card, url)
            if not is_at(interface, url):
                http.auth = httpx.Auth()  # none
            del card.supported_interfaces[:]
            card.supported_interfaces.append(interface)
            config = ClientConfig(httpx_client=http, supported_protocol_bindings=[*BINDINGS], polling=True)
            yield ClientFactory(config).create(card), card

    async def cancel(self, execution: Execution) -> bool:
        """Cancels the task of an earlier attempt, in CANCEL_SECONDS."""
        progress, server = Progress(lambda _: None), execution.executor
        try:
            async with asyncio.timeout(CANCEL_SECONDS), self._client(server, execution.values, CANCEL_SECONDS) as made:
                return await A2ACall(made[0], execution, progress, server.id).cancel_earlier()
        except TimeoutError:
            raise AgentUnavailable(f"{server.id} has canceled no task in {CANCEL_SECONDS:g} s") from None

    async def describe(self, executor: Executor, values: ValueResolver) -> str | None:
        """What the card says of the agent and its skills."""
        async with self._client(executor, values, DESCRIBE_SECONDS) as (_, card):
            return description_of(card)

    async def check(self, executor: Executor, values: ValueResolver) -> str:
        """Reads the card: the agent's name, how it is spoken to, and its skills."""
        async with self._client(executor, values, CARD_SECONDS) as (_, card):
            interface = card.supported_interfaces[0]
            skills = ", ".join(each.name for each in card.skills)
            text = f"{card.name}, by A2A {interface.protocol_version} and {interface.protocol_binding}"
            return truncate(f"{text}; skills: {skills}" if skills else text, MAX_CHECK)

    async def close(self) -> None:
        """Closes the connections."""
        await self._pool.aclose()


async def _card(http: httpx.AsyncClient, url: str, seconds: float) -> AgentCard:
    try:
        async with asyncio.timeout(seconds):
            return await read_card(http, url)
    except TimeoutError:
        raise AgentUnavailable(f"{url} gave no agent card in {seconds:g} s") from None


def _check_state(progress: Progress, agent: str, *, asks: bool) -> None:
    """Raises the error that the state of a task stands for; where it ``asks``, a person can give an authorization."""
    words = f": {progress.said}" if progress.said else ""
    match progress.state:
        case _ if progress.is_message:
            pass
        case TaskState.TASK_STATE_AUTH_REQUIRED if not asks:
            raise AuthorizationRequired(f"agent {agent} waits for an authorization{words}")
        case TaskState.TASK_STATE_REJECTED:
            raise AgentRejected(f"agent {agent} has rejected its task{words}")
        case TaskState.TASK_STATE_CANCELED:
            raise AgentFailed(f"the task of agent {agent} was canceled at its server{words}")
        case TaskState.TASK_STATE_FAILED:
            raise AgentFailed(f"agent {agent} has failed{words}")
