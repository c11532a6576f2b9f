"""What a call notes for its next attempt: of attempts that run at once, also on several workers, one goes on."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path

from baton.activities.context.call_record import CallRecord
from baton.activities.runtime.secrets import SecretStore
from baton.contracts.errors import OutcomeUnknown
from baton.contracts.message import Head, Message
from baton.journal.journal import Journal
from baton.resources.secret import Secrets


async def head_of(journal: Journal) -> Head:
    return (await journal.append_once(Head(), Message(role="user", content="Why?"), "run/1")).head


async def begin(journal: Journal, head: Head, key: str) -> bool:
    """Whether a new attempt may go on."""
    try:
        await CallRecord(journal, SecretStore(Secrets(), {}), head, key).begin_once("pay")
    except OutcomeUnknown:
        return False
    return True


async def test_of_attempts_that_begin_at_once_one_goes_on(journal_url: str) -> None:
    journals = [await Journal.open(journal_url) for _ in range(3)]
    head = await head_of(journals[0])
    for number in range(10):
        begun = await asyncio.gather(*(begin(each, head, f"run/call-{number}") for each in journals))
        assert sum(begun) == 1
    for each in journals:
        await each.close()


async def test_an_attempt_that_is_held_up_before_it_notes_that_it_begins_does_not_begin(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    journals = [await Journal.open(f"sqlite:///{file}") for _ in range(2)]
    head = await head_of(journals[0])
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("begin immediate")  # both can read that nothing was begun, and neither can write
        beginning = [asyncio.create_task(begin(each, head, "run/2")) for each in journals]
        await asyncio.sleep(0.3)
        other.execute("commit")
        assert sorted(await asyncio.gather(*beginning)) == [False, True]
    for each in journals:
        await each.close()


async def test_what_was_not_sent_is_begun_again(journal_url: str) -> None:
    journal = await Journal.open(journal_url)
    head = await head_of(journal)
    for _ in range(3):
        record = CallRecord(journal, SecretStore(Secrets(), {}), head, "run/2")
        await record.begin_once("pay")
        assert await record.has_begun()
        assert not await begin(journal, head, "run/2")
        await record.not_sent()
    await journal.close()


async def test_what_an_older_version_has_begun_is_not_begun_again(journal_url: str) -> None:
    journal = await Journal.open(journal_url)
    head = await head_of(journal)
    await CallRecord(journal, SecretStore(Secrets(), {}), head, "run/2").write("begun")  # with no text, as it did
    assert not await begin(journal, head, "run/2")
    await journal.close()
