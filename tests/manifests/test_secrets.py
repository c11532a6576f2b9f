"""Secrets: only the worker reads them, and they are found nowhere else."""

import asyncio
import json
import logging
import sys
from pathlib import Path

import pytest
import yaml
from temporalio.client import Client

from baton.activities.runtime.secrets import SecretStore
from baton.contracts.errors import KeyMissing
from baton.observability.log import RedactingFormatter
from baton.resources.loader import load_files
from baton.resources.secret import Secrets
from baton.resources.values import KeyRef
from baton.temporal.activity import SHOWN_CHARACTERS, Heartbeat
from baton.testing import Script, ScriptedModel
from tests.harness.environment import KEY, Environment, Json, agent, line
from tests.harness.processes import baton, process_env

INLINE = "sk-inline-fedcba9876543210"
HELD = "sk-held-00112233445566"


def model(name: str, url: str, key: Json) -> Json:
    config = {"openai": {"baseUrl": {"value": url}, "apiKey": key}}
    return {
        "apiVersion": "ark.mckinsey.com/v1alpha1",
        "kind": "Model",
        "metadata": {"name": name},
        "spec": {"type": "openai", "model": {"value": name}, "config": config},
    }


def everything(folder: Path) -> bytes:
    """The bytes of all files of a folder, except the manifests of the test."""
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name != "secret.yaml")


@pytest.mark.slow
def test_a_run_uses_secrets_of_its_files_and_leaves_none_of_them_anywhere(tmp_path: Path) -> None:
    script = Script(lines=[line("one", "hello"), line("two", {"status": 401, "text": f"Incorrect key: {HELD}"})])
    server = ScriptedModel(script.answer)
    received: list[str] = []
    with server.serve() as url:
        server.on_headers = lambda headers: received.append(headers["authorization"])
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"token": HELD}}
        held = {"valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}}
        query = {
            "apiVersion": "ark.mckinsey.com/v1alpha1",
            "kind": "Query",
            "metadata": {"name": "q"},
            "spec": {"input": "Why?", "targets": [{"type": "agent", "name": name} for name in ("one", "two", "three")]},
        }
        manifests = [
            secret,
            model("inline", url, {"value": INLINE}),
            model("held", url, held),
            agent("one", modelRef={"name": "inline"}),
            agent("two", modelRef={"name": "held"}),
            agent("three"),
            query,
        ]
        (tmp_path / "secret.yaml").write_text(yaml.safe_dump_all(manifests))
        env = process_env(OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY)
        done = baton("run", "-f", "secret.yaml", "-o", "json", env=env, cwd=tmp_path)
        shown = baton("status", "q", "-o", "json", env=env, cwd=tmp_path)
        watched = baton("watch", "q", env=env, cwd=tmp_path)
    assert done.returncode == 2
    assert sorted(received) == sorted([f"Bearer {INLINE}", f"Bearer {HELD}", f"Bearer {KEY}"])
    spoken = [each["status"] for each in json.loads(done.stdout)["status"]["responses"]]
    assert spoken == ["Success", "Failed", "Failed"], done.stderr
    words = done.stdout + done.stderr + shown.stdout + shown.stderr + watched.stdout + watched.stderr
    kept = everything(tmp_path / ".baton")
    assert len(kept) > 10_000
    for each in (INLINE, HELD, KEY):
        assert each not in words
        assert each.encode() not in kept


async def test_no_history_holds_the_key_that_a_run_used(env: Environment) -> None:
    env.script(line("one", {"text": "hello", "before": [{"status": 500, "text": f"broken, with {KEY}"}]}))
    handle = await env.start_query([agent("one")], "agent/one")
    status = await env.status(handle)
    assert status.message == "hello"
    assert KEY not in str(await handle.fetch_history())
    assert KEY.encode() not in env.journal.read_bytes()


async def test_a_secret_at_the_edge_of_a_heartbeat_is_not_shown_in_part() -> None:
    store = SecretStore(Secrets(), {"OPENAI_API_KEY": KEY})
    assert store.environment_secret("OPENAI_API_KEY")
    for room in range(len(KEY)):
        heartbeat = Heartbeat(store.redact_partial)
        heartbeat.on_text("x" * 3_000 + KEY + "y" * (SHOWN_CHARACTERS - room))
        live = await heartbeat.live_text()
        assert len(live.text) == SHOWN_CHARACTERS
        assert not any(KEY[start:] in live.text for start in range(len(KEY) - 6))


async def test_a_secret_at_the_edge_of_a_long_error_is_not_shown_in_part(env: Environment, client: Client) -> None:
    for room in (2_000, 1_990, 480):
        env.script(line("one", {"status": 400, "text": "x" * (room - 60) + KEY + "y" * 50}))
        status = await env.status(await env.start_query([agent("one")], "agent/one"))
        assert status.error
        assert KEY[:8] not in status.error


def test_a_secret_is_read_again_when_its_file_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "secret.yaml"
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "abc.json").write_text(json.dumps([str(file)]))
    store = SecretStore(Secrets(), {}, sources)
    ref = KeyRef(name="s", key="token")
    for value in ("first-value", "other-value"):
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"token": value}}
        file.write_text(yaml.safe_dump(secret))
        assert store.read(asyncio.run(store.of_run("abc")), "default", ref) == value
    with pytest.raises(KeyMissing, match="the worker has no Secret 'default/s' with the key 'token'"):
        store.read(asyncio.run(store.of_run("another run")), "default", ref)


def test_a_file_that_is_being_edited_fails_no_run(tmp_path: Path) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"token": HELD}}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump_all([secret, {**agent("one"), "spec": {}}]))
    (tmp_path / "broken.yaml").write_text("a: [")
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "abc.json").write_text(json.dumps([str(tmp_path)]))
    store = SecretStore(Secrets(), {}, tmp_path / "sources")
    assert store.read(asyncio.run(store.of_run("abc")), "default", KeyRef(name="s", key="token")) == HELD
    with pytest.raises(KeyMissing, match=r"broken\.yaml") as missing:
        store.read(asyncio.run(store.of_run("abc")), "default", KeyRef(name="other", key="token"))
    assert not missing.value.non_retryable


def test_a_worker_uses_the_secrets_of_the_manifests_it_was_started_with(tmp_path: Path) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"token": "c2VjcmV0IQ=="}}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(secret))
    store = SecretStore(load_files([tmp_path]).secrets, {})
    assert store.read(asyncio.run(store.of_run("any")), "default", KeyRef(name="s", key="token")) == "secret!"


def test_a_worker_reads_the_secrets_of_its_own_files_again_when_they_have_changed(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    secret: Json = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
    file.write_text(yaml.safe_dump({**secret, "stringData": {"token": "first-value"}}))
    own = load_files([tmp_path])
    store = SecretStore(own.secrets, {}, None, own.secret_files)
    ref = KeyRef(name="s", key="token")
    for text, value in (
        (None, "first-value"),
        (yaml.safe_dump({**secret, "stringData": {"token": "other-value"}}), "other-value"),
        ("a: [", "other-value"),  # somebody is editing it
        (yaml.safe_dump({**secret, "stringData": {"token": "third-value"}}), "third-value"),
    ):
        if text:
            file.write_text(text)
        assert store.read(asyncio.run(store.of_run("any")), "default", ref) == value
    file.write_text(yaml.safe_dump({**secret, "stringData": {"another": "value"}}))
    with pytest.raises(KeyMissing):
        store.read(asyncio.run(store.of_run("any")), "default", ref)


def test_secrets_that_were_read_are_removed_from_errors_and_logs() -> None:
    store = SecretStore(Secrets(), {"OPENAI_API_KEY": KEY})
    assert store.environment_secret("OPENAI_API_KEY") == KEY
    assert store.redact(f"key {KEY} refused") == "key [secret] refused"
    formatter = RedactingFormatter(logging.Formatter("%(message)s"), store.redact)
    try:
        raise ValueError(f"bad key {KEY}")
    except ValueError:
        record = logging.getLogger("x").makeRecord("x", 40, "f", 1, "it %s", (KEY,), sys.exc_info())
    assert KEY not in formatter.format(record)
    assert "[secret]" in formatter.format(record)
