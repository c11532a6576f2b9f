"""Spans that wait for their export: nothing is lost with a process, nobody else can read them, and they are bounded."""

import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest

from baton.contracts.settings import SettingsError
from baton.contracts.trace import SpanData
from baton.observability.span_export import SpanProcessor
from baton.observability.span_queue import MAX_FILE, MAX_WAITING, SpanQueue
from baton.temporal.encryption import Key, Keys

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def span(number: int, text: str = "") -> SpanData:
    """A span."""
    return SpanData(trace="a" * 32, id=f"{number:016x}", name=f"chat {number}{text}", start=NOW, end=NOW)


def queue(folder: Path, *keys: Key, most: int = 10) -> SpanQueue:
    """A queue of a process."""
    return SpanQueue(folder, Keys(*keys), most)


def names(found: SpanQueue) -> list[str]:
    """The names of the spans that wait."""
    return [each.name for each in found.first(100)]


def left_by_a_process(folder: Path, *numbers: int, keys: tuple[Key, ...] = ()) -> None:
    """Leaves the files of a process that had these spans: a lock ends where its file is closed."""
    other = queue(folder, *keys)
    other.add([*map(span, numbers)])
    other.close()


def test_spans_of_a_process_that_is_gone_are_taken_over_once(tmp_path: Path) -> None:
    left_by_a_process(tmp_path, 1, 2)
    first, second = queue(tmp_path), queue(tmp_path)
    for each in first, second:
        each.take_over()
    assert (names(first), names(second)) == (["chat 1", "chat 2"], [])


def test_spans_of_a_process_that_lives_are_left_to_it(tmp_path: Path) -> None:
    living, other = queue(tmp_path), queue(tmp_path)
    living.add([span(1)])
    other.take_over()
    living.take_over()
    assert (names(living), names(other)) == (["chat 1"], [])


def test_what_was_exported_is_in_no_file(tmp_path: Path) -> None:
    one = queue(tmp_path)
    one.add([span(1), span(2)])
    one.remove([span(1)])
    assert len(names(one)) == 2, "an equal span is not the one that was exported"
    one.remove(one.first(2))
    assert [each.stat().st_size for each in tmp_path.iterdir()] == [0]
    one.close()
    assert [*tmp_path.iterdir()] == []


def test_a_file_that_is_full_goes_when_its_spans_are_exported(tmp_path: Path) -> None:
    one = queue(tmp_path)
    one.add([span(1, "x" * MAX_FILE), span(2)])
    assert len([*tmp_path.iterdir()]) == 2
    one.remove(one.first(1))
    assert [each.stat().st_size < 1_000 for each in tmp_path.iterdir()] == [True]


def test_after_a_death_only_what_was_added_since_the_last_export_may_come_twice(tmp_path: Path) -> None:
    one, other = queue(tmp_path), queue(tmp_path)
    for number in range(3):
        one.begin_file()
        exported = one.first(10)
        one.add([span(number)])
        one.remove(exported)
    one.close()
    other.take_over()
    assert names(other) == ["chat 2"]


@pytest.mark.full
def test_spans_that_are_not_taken_need_few_files_and_few_bytes(tmp_path: Path) -> None:
    one = queue(tmp_path, most=1_000)
    for number in range(100):
        one.begin_file()
        one.put_last(one.first(10))
        one.add([span(number, "x" * 1_000_000)])
    assert len(names(one)) < MAX_WAITING / 1_000_000
    assert len([*tmp_path.iterdir()]) <= MAX_WAITING / MAX_FILE


def test_a_later_attempts_span_of_a_call_replaces_the_earlier_one(tmp_path: Path) -> None:
    one = queue(tmp_path)
    one.add([span(1)])
    exported = one.first(1)
    one.add([span(1, " again")])
    one.remove(exported)
    assert names(one) == ["chat 1 again"]


def test_the_oldest_spans_are_dropped_where_too_many_wait(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = queue(tmp_path, most=2)
    one.add([*map(span, range(5))])
    assert names(one) == ["chat 3", "chat 4"]
    assert caplog.text.count("spans are dropped") == 1


def test_an_export_that_ends_after_the_process_has_given_its_spans_up_changes_nothing(tmp_path: Path) -> None:
    one, other = queue(tmp_path), queue(tmp_path)
    one.add([span(1), span(2)])
    exported = one.first(2)
    one.close()
    with (tmp_path / "unrelated").open("w") as unrelated:  # which may have the number that the closed file had
        unrelated.write("kept")
        unrelated.flush()
        one.put_last(exported)
        one.remove(exported)
    other.take_over()
    assert names(other) == ["chat 1", "chat 2"]
    assert (tmp_path / "unrelated").read_text() == "kept"


def test_files_are_encrypted_where_there_is_a_key_and_private(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = Key.generate("one")
    left_by_a_process(tmp_path, 1, keys=(key,))
    (file,) = tmp_path.iterdir()
    assert b"chat" not in file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o600
    reader = queue(tmp_path, Key.generate("two"), key)
    reader.take_over()
    assert names(reader) == ["chat 1"]
    reader.close()
    without = queue(tmp_path)
    without.take_over()
    assert names(without) == []
    assert "can't be read: this is encrypted with the key 'two'" in caplog.text
    assert len([*tmp_path.iterdir()]) == 1, "a worker that has the key exports it"


def test_a_span_that_was_not_written_to_its_end_takes_no_other_with_it(tmp_path: Path) -> None:
    left_by_a_process(tmp_path, 1)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:40])
    reader = queue(tmp_path)
    reader.take_over()
    assert names(reader) == ["chat 1"]


def test_spans_wait_in_memory_where_no_file_can_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    one = queue(tmp_path / "file" / "spans")
    with caplog.at_level(logging.WARNING):
        one.add([span(1)])
        one.add([span(2)])
    one.remove(one.first(1))
    assert names(one) == ["chat 2"]
    assert caplog.text.count("a crash of this process would lose its last spans") == 1


@pytest.mark.parametrize("given", ["0", "-1", "a", "1e3", "100000000"])
async def test_a_variable_that_is_no_number_is_refused_by_its_name(given: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^OTEL_BSP_SCHEDULE_DELAY is '.*', but must be a number from 1 to"):
        SpanProcessor({"OTEL_BSP_SCHEDULE_DELAY": given}, tmp_path, str)
