"""The page of the console: its files, their headers, and what needs no key."""

import gzip
import hashlib
import re
from pathlib import Path
from typing import get_args

import httpx
import pytest

from baton.contracts.settings import SettingsError
from baton.starter.gateway.settings import GatewaySettings
from baton.starter.history.events import WaitKind
from baton.starter.web_console.page import POLICY, STATIC, assets
from tests.harness.environment import Environment
from tests.harness.gateway import GatewayServer, key_file

MAX_COMPRESSED = 200_000
"""Bytes of the whole page as it is sent."""

VENDOR = STATIC / "vendor"

EVERY_RESPONSE = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


async def test_the_page_needs_no_key_and_all_data_does(served_env: Environment, tmp_path: Path) -> None:
    path, keys = key_file(tmp_path, {"ann": {}})
    async with GatewayServer.running(served_env, BATON_GATEWAY_KEYS=str(path)) as gateway:
        for name in ("/", "/assets/app.js", "/assets/style.css"):
            assert (await gateway.http.get(name)).status_code == 200
        for name in ("/runs", "/inbox", "/targets", "/runs/x/events", "/console", "/openapi.json"):
            await gateway.get(name, 401)
        await gateway.get("/console", key=keys["ann"])
        for method in ("POST", "PUT", "DELETE"):
            assert (await gateway.http.request(method, "/")).status_code == 401
            assert (await gateway.http.request(method, "/assets/app.js")).status_code == 401


async def test_a_page_of_another_host_is_refused(gateway: GatewayServer) -> None:
    for path in ("/", "/assets/app.js"):
        response = await gateway.http.get(path, headers={"host": "evil.example"})
        assert response.status_code == 403


async def test_every_file_is_sent_with_a_strict_policy(gateway: GatewayServer) -> None:
    assert "unsafe" not in POLICY
    assert POLICY.startswith("default-src 'none'")
    for path in ("/", *(f"/assets/{name}" for name in assets())):
        response = await gateway.http.get(path)
        assert response.status_code == 200
        assert {name: response.headers[name] for name in EVERY_RESPONSE} == EVERY_RESPONSE
        again = await gateway.http.get(path, headers={"if-none-match": response.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["content-security-policy"] == POLICY


async def test_a_file_is_compressed_only_for_clients_that_accept_it(gateway: GatewayServer) -> None:
    plain = await gateway.http.get("/assets/app.js", headers={"accept-encoding": "identity"})
    packed = await gateway.http.get("/assets/app.js", headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert plain.content == packed.content == (STATIC / "app.js").read_bytes()


@pytest.mark.parametrize(
    "path", ["../page.py", "%2e%2e/page.py", "..%2fpage.py", "vendor", "vendor/", "", "nothing.js", "/etc/passwd"]
)
async def test_no_other_file_is_served(gateway: GatewayServer, path: str) -> None:
    async with httpx.AsyncClient(timeout=60) as client:
        response = await client.get(f"{gateway.url}/assets/{path}")
    assert response.status_code in (404, 401), path
    assert b"import" not in response.content


def test_files_of_others_are_what_their_checksums_say() -> None:
    lines = (VENDOR / "checksums.txt").read_text().splitlines()
    listed = {name: digest for digest, name in (line.split() for line in lines)}
    present = {path.name for path in VENDOR.iterdir()} - {"checksums.txt"}
    assert present == set(listed)
    for name, digest in listed.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


def test_the_whole_page_is_small() -> None:
    size = sum(len(gzip.compress(asset.content)) for name, asset in assets().items() if not name.endswith(".txt"))
    assert size < MAX_COMPRESSED, size


def test_the_document_has_no_inline_script_or_style_and_loads_nothing_from_elsewhere() -> None:
    document = (STATIC / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", document)
    assert re.findall(r"<script[^>]*>([^<]*)</script>", document) == [""]
    own = [path for path in STATIC.rglob("*") if path.suffix in (".html", ".js", ".css") and path.parent != VENDOR]
    for path in own:
        text = path.read_text()
        links = re.findall(r"""(?:src|href|import|from|url\()[ =(]*["']?(https?:)?//""", text)
        assert not links, path.name


def test_no_script_makes_markup_of_a_text() -> None:
    for path in STATIC.glob("*.js"):
        text = path.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            path
        )


def test_every_file_that_a_script_imports_exists() -> None:
    for path in STATIC.glob("*.js"):
        for name in re.findall(r"""from "\./([^"]+)";""", path.read_text()):
            assert (STATIC / name).is_file(), f"{path.name} imports {name}"


async def test_the_console_links_to_temporals_ui_and_to_traces_as_the_settings_say(served_env: Environment) -> None:
    links = {
        "BATON_GATEWAY_TEMPORAL_UI_URL": "https://temporal.example/",
        "BATON_GATEWAY_TRACE_URL": "https://traces.example/?q={conversation}",
    }
    async with GatewayServer.running(served_env, **links) as gateway:
        info = await gateway.get("/console")
        assert info["caller"] == "local"
        assert info["temporalUi"] == f"https://temporal.example/namespaces/{served_env.client.namespace}"
        assert info["traceLink"] == links["BATON_GATEWAY_TRACE_URL"]


@pytest.mark.parametrize("name", ["BATON_GATEWAY_TEMPORAL_UI_URL", "BATON_GATEWAY_TRACE_URL"])
def test_a_link_that_would_run_a_script_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        GatewaySettings.of({name: "javascript:alert(1)"})


def test_every_kind_of_wait_has_words() -> None:
    text = (STATIC / "conversation.js").read_text()
    words = re.search(r"const WAITS = {(.*?)};", text, re.DOTALL)
    assert words
    assert {*re.findall(r"(\w+): \"", words[1])} == {*get_args(WaitKind)}
