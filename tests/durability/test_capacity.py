"""The figures of the capacity page are those of the benchmarks' results, and the pods' memory suffices for them."""

import json
import re

import pytest

from benchmarks.capacity import PAGE, RESULTS, Measured, tables
from tests.durability.test_kubernetes import OVERLAYS, container, workers


def test_the_tables_of_the_page_are_computed_from_the_results() -> None:
    text = PAGE.read_text()
    assert [each for each in tables() if each not in text] == []
    blocks = re.findall(r"^(?:\|.*\n)+", text, re.MULTILINE)
    assert blocks == tables(), "every table of the page is computed"


def test_what_the_page_says_beside_its_tables_is_in_the_results_too() -> None:
    text = " ".join(PAGE.read_text().split())
    measured = Measured.now()
    assert f"/ {measured.busy_ms_per_turn} ms = {1000 / measured.busy_ms_per_turn:.0f} turns" in text
    assert f"{measured.waiting_mb} MB with 10,000 of them" in text
    hostile = max(int(each) for each in re.findall(r'"worker, MB": (\d+)', (RESULTS / "hostile.json").read_text()))
    assert f"took up to {hostile} MB" in text


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_asks_for_the_memory_that_was_measured(overlay: str) -> None:
    approvals = json.loads((RESULTS / "waiting-approvals.json").read_text())["rows"][0]["waiting MB"]
    most = max(approvals, Measured.now().waiting_mb) * 1_000_000
    for pod in workers(overlay).values():
        resources = container(pod)["resources"]
        requested = int(resources["requests"]["memory"].removesuffix("Mi")) * 1024 * 1024
        assert most < requested < int(resources["limits"]["memory"].removesuffix("Gi")) * 1024**3
