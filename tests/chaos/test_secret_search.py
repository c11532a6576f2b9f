"""A search for secrets finds them in each of their forms."""

import base64
from pathlib import Path

import pytest

from tests.chaos.secret_search import PIECE, SecretSearch

SECRET = "sk-0123456789"


@pytest.mark.parametrize("before", range(4))
def test_a_secret_is_found_as_it_is_and_spelled_otherwise(before: int) -> None:
    spelled = "x" * before + f"{SECRET}yz"
    for data in (spelled.encode(), base64.b64encode(spelled.encode()), spelled.encode().hex().encode()):
        search = SecretSearch([SECRET])
        search.text("here", b"..." + data)
        assert search.found["leaks"] == ["here"]


def test_a_secret_is_found_where_a_file_is_cut_in_two(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"." * (PIECE - 5) + SECRET.encode() + b".")
    search = SecretSearch([SECRET])
    search.file(file)
    assert search.found["leaks"] == ["log"]


def test_what_holds_no_secret_is_counted_and_not_reported(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"sk-01234 is only a part")
    search = SecretSearch([SECRET])
    search.file(file)
    assert search.found == {"leaks": [], "searched": {"files": 1, "megabytes": 0.0}, "events": {}}
