"""Hostile requests, which are made from the description of the gateway's own protocol: refused, never a failure."""

import asyncio
import sys

import pytest

from baton.testing import Reply
from tests.harness.gateway import GatewayServer


@pytest.mark.full
async def test_no_request_that_the_description_allows_or_forbids_makes_the_gateway_fail(gateway: GatewayServer) -> None:
    gateway.env.answer = lambda _: Reply(text="Because.")
    arguments = ["run", f"{gateway.url}/openapi.json", "--url", gateway.url, "--checks", "not_a_server_error"]
    arguments += [
        "--max-examples",
        "15",
        "--phases",
        "examples,coverage,fuzzing",
        "--seed",
        "1",
        "--generation-database",
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "schemathesis.cli",
        *arguments,
        ":memory:",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    text = output.decode()
    assert process.returncode == 0, text[-6_000:]
    assert "14 selected" in text, text[-6_000:]
    assert (await gateway.get("/targets"))["targets"]
