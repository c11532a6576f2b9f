"""Leases of calls: of all attempts one makes a call, and only the end of its lease lets another one make it."""

import asyncio
import contextlib
import sqlite3
import uuid
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import select

from baton.activities.tool.http import HttpClient
from baton.activities.tool.http_request import HttpRequest
from baton.activities.tool.mcp.connection import McpConnections
from baton.activities.tool.mcp.endpoint import McpEndpoint
from baton.activities.tool.mcp.request import McpRequest, use_tool
from baton.contracts.errors import BatonError, BudgetExceeded, LeaseLost, ModelUnavailable, OutcomeUnknown
from baton.contracts.message import Head, Message, TokenUsage
from baton.journal import schema
from baton.journal.accounts import Account, Amount, Charge
from baton.journal.journal import Journal
from baton.journal.leases import Lease, LeaseMissing
from tests.harness.environment import KEY
from tests.harness.manifests import own_server
from tests.harness.model_providers import PROVIDERS, serving
from tests.harness.scripted_mcp_server import ScriptedMcpServer
from tests.harness.tool_server import Answer, ToolServer

LEASE = 1.5


@pytest_asyncio.fixture(loop_scope="session")
async def journals(journal_url: str) -> AsyncIterator[list[Journal]]:
    """The journal, as three workers have opened it."""
    opened = [await Journal.open(journal_url, "default", lease_seconds=LEASE) for _ in range(3)]
    yield opened
    for journal in opened:
        await journal.close()


def new_call() -> str:
    return f"{uuid.uuid4()}/1/reply"


async def answer(journal: Journal, lease: Lease, text: str, tokens: int = 0) -> str:
    message = Message(role="assistant", content=text, usage=TokenUsage(total_tokens=tokens) if tokens else None)
    await journal.answer(lease, Head(), message)
    return (await journal.row(lease.call)).message.content


async def make(journal: Journal, call: str, sent: list[str], name: str) -> str:
    """Makes a call, which takes a moment, or returns what another attempt was answered."""
    async with journal.leases.hold(call) as lease:
        if lease.is_answered:
            return (await journal.row(call)).message.content
        await lease.send_once("pay")
        sent.append(name)
        await asyncio.sleep(0.3)
        return await answer(journal, lease, name)


def freeze(journal: Journal) -> None:
    """Lets a worker renew nothing any more."""
    assert journal.leases._renewing
    journal.leases._renewing.cancel()


async def test_of_attempts_at_once_one_makes_the_call_and_all_return_its_answer(journals: list[Journal]) -> None:
    for _ in range(5):
        call = new_call()
        sent = list[str]()
        attempts = (make(journal, call, sent, f"{place}") for place, journal in enumerate([*journals, *journals]))
        answers = await asyncio.gather(*attempts)
        assert len(sent) == 1
        assert {*answers} == {*sent}


@pytest.mark.full
async def test_a_lease_lasts_as_long_as_its_worker_renews_it(journals: list[Journal]) -> None:
    call = new_call()
    sent = list[str]()
    async with journals[0].leases.hold(call) as lease:
        waiting = asyncio.create_task(make(journals[1], call, sent, "the other"))
        await asyncio.sleep(2 * LEASE)
        assert await answer(journals[0], lease, "the first") == "the first"
    assert await waiting == "the first"
    assert sent == []


async def test_the_next_attempt_makes_a_call_that_was_not_sent_when_the_lease_has_ended_and_the_first_does_not(
    journals: list[Journal],
) -> None:
    call = new_call()
    sent = list[str]()
    with pytest.raises(LeaseLost):
        async with journals[0].leases.hold(call) as lease:
            freeze(journals[0])
            assert await make(journals[1], call, sent, "the other") == "the other"
            await lease.send_once("pay")
    assert sent == ["the other"]


async def test_the_outcome_of_a_call_that_was_sent_is_unknown_only_when_its_lease_has_ended(
    journals: list[Journal],
) -> None:
    call = new_call()
    async with journals[0].leases.hold(call) as lease:
        await lease.send_once("pay")
        freeze(journals[0])
        begun = asyncio.get_running_loop().time()
        with pytest.raises(OutcomeUnknown, match="pay was started before and interrupted"):
            await make(journals[1], call, [], "the other")
        assert asyncio.get_running_loop().time() - begun >= LEASE
        assert await journals[2].leases.was_sent(call)
        assert await answer(journals[0], lease, "late") == "late", "an answer that comes after all is written"
    assert await make(journals[1], call, [], "the other") == "late"


async def test_a_call_that_is_given_up_is_free_at_once_and_one_that_was_sent_stays_so(journals: list[Journal]) -> None:
    for unsent in (True, False):
        call = new_call()
        sent = list[str]()
        with pytest.raises(ModelUnavailable):
            async with journals[0].leases.hold(call) as lease:
                await lease.send_once("pay")
                raise ModelUnavailable("down", unsent=unsent)
        expected = contextlib.nullcontext() if unsent else pytest.raises(OutcomeUnknown)
        with expected:
            await make(journals[1], call, sent, "the other")
        assert sent == ["the other"][: int(unsent)]


async def test_an_attempt_that_is_canceled_while_it_waits_for_the_lease_leaves_none_behind(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    journal = await Journal.open(f"sqlite:///{file}", "default")
    call = new_call()
    sent = list[str]()
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("begin immediate")  # the lease can't be written
        attempt = asyncio.create_task(make(journal, call, sent, "canceled"))
        await asyncio.sleep(0.3)
        attempt.cancel()
        await asyncio.sleep(0.1)
        other.execute("commit")
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert await make(journal, call, sent, "next") == "next"
    assert sent == ["next"]
    await journal.close()


def charge(call: str, tokens: int, **limits: int) -> Charge:
    account = Account(f"{call[:36]}/o", tuple(limits.items()))
    return Charge((account,), Amount(tokens, model_calls=1), lambda _: BudgetExceeded("no more"), per_sending=True)


async def used(journal: Journal, call: str) -> tuple[int, int]:
    """The tokens and the model calls of the account of a call."""
    table = schema.accounts
    [row] = await journal.database.run(select(table).where(table.c.id == f"{call[:36]}/o"))
    return row.tokens, row.model_calls


async def test_what_was_sent_is_charged_as_used_or_as_estimated_and_what_was_not_sent_is_not(
    journals: list[Journal],
) -> None:
    journal = journals[0]
    call = new_call()
    failures = [
        (ModelUnavailable("down", unsent=True), (0, 0)),
        (ModelUnavailable("cut"), (50, 1)),
        (ModelUnavailable("cut, and counted", usage=TokenUsage(total_tokens=7)), (57, 2)),
        (ModelUnavailable("down", unsent=True), (57, 2)),
    ]
    for failure, charged in failures:
        with pytest.raises(ModelUnavailable):
            async with journal.leases.hold(call, charge(call, 50, model_calls=3), sent=True):
                raise failure
        assert await used(journal, call) == charged
    async with journal.leases.hold(call, charge(call, 50, model_calls=3), sent=True) as lease:
        await answer(journal, lease, "Because.", tokens=9)
    assert await used(journal, call) == (66, 3)
    other = f"{call[:36]}/2/reply"
    with pytest.raises(BudgetExceeded):
        async with journal.leases.hold(other, charge(other, 1, model_calls=3), sent=True):
            pytest.fail("it must not begin")
    with pytest.raises(BudgetExceeded):
        async with journals[1].leases.hold(other, charge(other, 1, model_calls=3), sent=True):
            pytest.fail("it must not begin")
    async with journals[1].leases.hold(other, charge(other, 1, model_calls=4), sent=True):
        pass
    assert await used(journal, call) == (67, 4)


@pytest.mark.full
async def test_a_call_whose_worker_falls_silent_is_charged_again_only_if_it_was_sent(journals: list[Journal]) -> None:
    for sent in (False, True):
        call = new_call()
        async with journals[0].leases.hold(call, charge(call, 5), sent=sent):
            freeze(journals[0])
            async with journals[1].leases.hold(call, charge(call, 5), sent=sent) as lease:
                assert await used(journals[1], call) == ((10, 2) if sent else (5, 1))
                await answer(journals[1], lease, "Because.", tokens=6)
        assert await used(journals[1], call) == ((11, 2) if sent else (6, 1))


def post(server: ToolServer, method: str = "POST") -> HttpRequest:
    return HttpRequest(method=method, destination=own_server(server.url), headers=(), body=None)


async def test_a_journal_that_is_only_read_holds_no_leases_and_charges_nothing(journal_url: str) -> None:
    call = new_call()
    account = Account(f"{uuid.uuid4()}/a", (("tokens", 0),))
    charge = Charge((account,), Amount(tokens=7), lambda _: BudgetExceeded("too much"), per_sending=True)
    journal = await Journal.open(journal_url, "default")
    journal.leases.only_read()
    async with journal.leases.hold(call, charge) as lease:
        assert not lease.is_answered
        with pytest.raises(LeaseMissing):
            await lease.send_once("pay")
        with pytest.raises(LeaseMissing):
            await answer(journal, lease, "paid")
    for column, value in (
        (schema.calls.c.id, call),
        (schema.charges.c.call, f"{call}/1"),
        (schema.accounts.c.id, account.id),
    ):
        assert not await journal.database.run(select(column).where(column == value))
    await journal.close()


async def test_a_request_that_may_have_effects_is_sent_only_as_long_as_the_lease_of_a_call_is_held(
    journals: list[Journal], tool_server: ToolServer
) -> None:
    tool_server.answers(Answer("done"))
    http = HttpClient()
    ended = asyncio.Event()

    async def send_late() -> None:
        await ended.wait()
        await http.send(post(tool_server), 5, repeatable=True)

    with pytest.raises(LeaseMissing, match=r"^POST 127\.0\.0\.1 needs the lease of a call"):
        await http.send(post(tool_server), 5, repeatable=True)
    assert await http.send(post(tool_server, "GET"), 5, repeatable=True) == "done"
    async with journals[0].leases.hold(new_call()):
        late = asyncio.create_task(send_late())
        assert await http.send(post(tool_server), 5, repeatable=True) == "done"
    ended.set()
    with pytest.raises(LeaseMissing):
        await late
    assert [seen.method for seen in tool_server.seen] == ["GET", "POST"]
    await http.close()


@pytest.mark.parametrize("name", PROVIDERS)
async def test_no_model_is_called_without_the_lease_of_a_call(name: str) -> None:
    with serving(name, KEY) as provider:
        with pytest.raises(BatonError, match="needs the lease of a call"):
            await provider.ask()
        assert provider.server.requests == []


async def test_no_tool_of_an_mcp_server_is_called_without_the_lease_of_a_call(journals: list[Journal]) -> None:
    connections = McpConnections()
    async with ScriptedMcpServer().serving() as server:
        endpoint = McpEndpoint("test", own_server(server.url))

        async def current(_: bool, __: bool) -> McpEndpoint:
            return endpoint

        asked = partial(McpRequest(connections, current).send, use_tool("echo", {}, "test"), 30)
        with pytest.raises(LeaseMissing, match="the tool echo of test needs the lease of a call"):
            await asked()
        async with journals[0].leases.hold(new_call()):
            assert not (await asked()).is_error
        await connections.close()
