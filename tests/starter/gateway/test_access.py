"""Who may use the gateway, and what its callers see."""

import datetime
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from baton.contracts.settings import SettingsError
from baton.starter.gateway.access import KeyEntry, add_key, hash_of, is_loopback, new_key, read_keys
from baton.starter.gateway.app import Gateway, create_app
from baton.starter.gateway.server import check_address
from baton.starter.scripted_model import serve_in_thread
from baton.testing import Reply
from tests.harness.environment import Environment, agent, line
from tests.harness.gateway import GatewayServer, Json, key_file

AUDIENCE = "baton"


async def test_a_request_without_a_valid_key_is_refused(served_env: Environment, tmp_path: Path) -> None:
    path, keys = key_file(tmp_path, {"alice": {}})
    async with GatewayServer.running(served_env, BATON_GATEWAY_KEYS=str(path)) as gateway:
        for value in ("", "Bearer bk-wrong", "Basic YTpi", "Bearer"):
            refused = await gateway.get("/targets", 401, authorization=value)
            assert refused["error"]["code"] == "invalid_api_key"
        assert (await gateway.get("/targets", key=keys["alice"]))["targets"]
        assert (await gateway.get("/targets", x_api_key=keys["alice"]))["targets"]
        assert (await gateway.http.get("/healthz")).text == "alive\n"


async def test_a_caller_sees_and_controls_its_own_runs_alone(served_env: Environment, tmp_path: Path) -> None:
    path, keys = key_file(tmp_path, {"alice": {}, "bob": {}, "root": {"allRuns": True}})
    served_env.script(line("one", "a", "b"))
    async with GatewayServer.running(served_env, BATON_GATEWAY_KEYS=str(path)) as gateway:
        body = {"target": "agent/one", "input": "Why?"}
        run = (await gateway.post("/runs", body, 201, key=keys["alice"]))["id"]
        other = (await gateway.post("/runs", body, 201, key=keys["bob"]))["id"]
        for key in ("alice", "root"):
            assert (await gateway.get(f"/runs/{run}", key=keys[key]))["id"] == run
        unknown = await gateway.get("/runs/one-0000", 404, key=keys["bob"])
        hidden = await gateway.get(f"/runs/{run}", 404, key=keys["bob"])
        assert hidden["error"]["message"].replace(run, "") == unknown["error"]["message"].replace("one-0000", "")
        for control in ("steer", "pause", "terminate", "cancel", "approve", "reply"):
            sent = {"text": "x", "call": "x"}
            await gateway.post(f"/runs/{run}/{control}", sent, 404, key=keys["bob"])
        await gateway.get(f"/runs/{run}/events", 404, key=keys["bob"])
        await served_env.find_runs(f"WorkflowId = '{run}'", 1)
        await served_env.find_runs(f"WorkflowId = '{other}'", 1)
        seen = {
            name: {each["id"] for each in (await gateway.get("/runs", key=key))["runs"]} for name, key in keys.items()
        }
        assert seen == {"alice": {run}, "bob": {other}, "root": {run, other}}


async def test_callers_with_the_same_idempotency_key_have_runs_of_their_own(
    served_env: Environment, tmp_path: Path
) -> None:
    path, keys = key_file(tmp_path, {"alice": {}, "bob": {}})
    served_env.script(line("one", "a", "b"))
    async with GatewayServer.running(served_env, BATON_GATEWAY_KEYS=str(path)) as gateway:
        body = {"target": "agent/one", "input": "Why?"}
        ids = {(await gateway.post("/runs", body, 201, idempotency_key="k", key=key))["id"] for key in keys.values()}
        assert len(ids) == 2


async def test_a_caller_sees_and_asks_only_what_its_service_account_may_use(env: Environment, tmp_path: Path) -> None:
    account: Json = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "clerk"}}
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    rule = {"apiGroups": ["ark.mckinsey.com"], "resources": ["agents", "models"], "verbs": ["use"]}
    role = {
        **rbac,
        "kind": "Role",
        "metadata": {"name": "clerk"},
        "rules": [{**rule, "resourceNames": ["one", "default"]}],
    }
    binding = {
        **rbac,
        "kind": "RoleBinding",
        "metadata": {"name": "clerk"},
        "roleRef": {"kind": "Role", "name": "clerk", "apiGroup": "rbac.authorization.k8s.io"},
        "subjects": [{"kind": "ServiceAccount", "name": "clerk"}],
    }
    path, keys = key_file(tmp_path, {"clerk": {"serviceAccount": "clerk"}, "other": {"serviceAccount": "nobody"}})
    async with env.with_manifests([agent("one"), agent("two"), account, role, binding]) as served:
        served.script(line("one", "a"))
        async with GatewayServer.running(served, BATON_GATEWAY_KEYS=str(path)) as gateway:
            seen = await gateway.get("/targets", key=keys["clerk"])
            assert [target["id"] for target in seen["targets"]] == ["agent/one"]
            assert (await gateway.get("/targets", key=keys["other"]))["targets"] == []
            await gateway.post("/runs", {"target": "agent/two", "input": "?"}, 404, key=keys["clerk"])
            run = await gateway.post("/runs", {"target": "agent/one", "input": "?"}, 201, key=keys["clerk"])
            await gateway.finished(run["id"], key=keys["clerk"])
            state = await gateway.get(f"/runs/{run['id']}", key=keys["clerk"])
            assert state["status"]["phase"] == "Completed"


async def test_only_what_a_label_or_a_namespace_names_is_served(env: Environment) -> None:
    labeled = {**agent("one"), "metadata": {"name": "one", "labels": {"baton/serve": "true"}}}
    excluded = {**agent("two"), "metadata": {"name": "two", "namespace": "team-a", "labels": {"baton/serve": "false"}}}
    elsewhere = {**agent("three"), "metadata": {"name": "three", "namespace": "team-a"}}
    async with env.with_manifests([labeled, excluded, elsewhere, agent("four")]) as served:
        for namespaces, names in (("", ["agent/one"]), ("team-a", ["agent/one", "agent/team-a/three"])):
            async with GatewayServer.running(served, BATON_GATEWAY_NAMESPACES=namespaces) as gateway:
                listed = await gateway.get("/targets")
                assert [target["id"] for target in listed["targets"]] == names


def test_a_gateway_without_keys_listens_on_loopback_addresses_only(tmp_path: Path) -> None:
    path, _ = key_file(tmp_path, {"alice": {}})
    for host in ("127.0.0.1", "localhost", "::1"):
        check_address(host, {})
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.com"):
        with pytest.raises(SettingsError, match="needs keys"):
            check_address(host, {})
        check_address(host, {"BATON_GATEWAY_KEYS": str(path)})
    assert not is_loopback("127.0.0.1.example.com")


def test_a_key_is_added_to_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    path, key = tmp_path / "keys.yaml", new_key()
    add_key(path, KeyEntry(name="alice", sha256=hash_of(key), service_account="clerk"))
    add_key(path, KeyEntry(name="bob", sha256=hash_of(new_key())))
    assert path.stat().st_mode & 0o777 == 0o600
    assert key not in path.read_text()
    assert read_keys(path)[hash_of(key)].account.name == "clerk"
    with pytest.raises(SettingsError, match="has a key of bob"):
        add_key(path, KeyEntry(name="bob", sha256=hash_of(new_key())))


@pytest.mark.parametrize(
    ("text", "problem"),
    [("keys: [{name: a, sha256: x}]", "keys.0.sha256"), ("{", "not YAML"), ("keys: 3", "keys"), ("[]", "valid")],
)
def test_a_wrong_file_of_keys_is_named_with_its_field(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=problem) as error:
        read_keys(path)
    assert str(path) in str(error.value)


async def test_a_revoked_key_is_refused_without_a_restart(
    served_env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.starter.gateway.access.RELOAD_SECONDS", 0)
    path, keys = key_file(tmp_path, {"alice": {}, "bob": {}})
    async with GatewayServer.running(served_env, BATON_GATEWAY_KEYS=str(path)) as gateway:
        await gateway.get("/targets", key=keys["alice"])
        path.write_text("keys: []")
        await gateway.get("/targets", 401, key=keys["alice"])


class Issuer:
    """An OIDC issuer with one key, which can be rotated."""

    def __init__(self) -> None:
        self.url = ""
        self.rotate("k1")

    def rotate(self, key_id: str) -> None:
        """Replaces the key."""
        self.key_id = key_id
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    @contextmanager
    def serving(self) -> Iterator["Issuer"]:
        async def discovery(_: Any) -> JSONResponse:
            return JSONResponse({"issuer": self.url, "jwks_uri": f"{self.url}/keys"})

        async def keys(_: Any) -> JSONResponse:
            public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
            return JSONResponse({"keys": [{**public, "kid": self.key_id, "use": "sig"}]})

        app = Starlette(routes=[Route("/.well-known/openid-configuration", discovery), Route("/keys", keys)])
        with serve_in_thread(app) as self.url:
            yield self

    def token(self, **claims: Any) -> str:
        """A token that is valid unless the claims say otherwise."""
        now = datetime.datetime.now(datetime.UTC)
        valid = {"iss": self.url, "aud": AUDIENCE, "sub": "alice", "exp": now + datetime.timedelta(minutes=5)}
        given = {name: value for name, value in {**valid, **claims}.items() if value is not None}
        return jwt.encode(given, self.key, "RS256", headers={"kid": self.key_id})


async def test_a_token_of_the_issuer_counts_and_no_other(served_env: Environment) -> None:
    with Issuer().serving() as issuer:
        settings = {"BATON_GATEWAY_OIDC_ISSUER": issuer.url, "BATON_GATEWAY_OIDC_AUDIENCE": AUDIENCE}
        async with GatewayServer.running(served_env, **settings) as gateway:
            await gateway.get("/targets", key=issuer.token())
            now = datetime.datetime.now(datetime.UTC)
            wrong = [
                issuer.token(aud="other"),
                issuer.token(iss="https://evil.example"),
                issuer.token(exp=now - datetime.timedelta(hours=1)),
                issuer.token(exp=None),
                issuer.token(sub=None),
                issuer.token()[:-4] + "AAAA",
                jwt.encode({"sub": "alice", "aud": AUDIENCE, "iss": issuer.url}, "", "none"),
                jwt.encode({"sub": "alice"}, ec.generate_private_key(ec.SECP256R1()), "ES256", headers={"kid": "k1"}),
                "a.b.c",
                "x" * 20_000,
            ]
            for token in wrong:
                await gateway.get("/targets", 401, key=token)


async def test_a_new_key_of_the_issuer_is_fetched(served_env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.starter.gateway.oidc.REFRESH_SECONDS", 0)
    with Issuer().serving() as issuer:
        settings = {"BATON_GATEWAY_OIDC_ISSUER": issuer.url, "BATON_GATEWAY_OIDC_AUDIENCE": AUDIENCE}
        async with GatewayServer.running(served_env, **settings) as gateway:
            old = issuer.token()
            await gateway.get("/targets", key=old)
            issuer.rotate("k2")
            await gateway.get("/targets", key=issuer.token())
            await gateway.get("/targets", 401, key=old)


async def test_a_claim_of_a_token_names_the_service_account(served_env: Environment) -> None:
    with Issuer().serving() as issuer:
        settings = {
            "BATON_GATEWAY_OIDC_ISSUER": issuer.url,
            "BATON_GATEWAY_OIDC_AUDIENCE": AUDIENCE,
            "BATON_GATEWAY_OIDC_ACCOUNT_CLAIM": "account",
        }
        served_env.script(line("one", "a"))
        async with GatewayServer.running(served_env, **settings) as gateway:
            await gateway.get("/targets", 401, key=issuer.token())
            body = {"target": "agent/one", "input": "Why?"}
            for claims in ({"account": "team-a/clerk"}, {"sub": "system:serviceaccount:team-a:clerk"}):
                run = await gateway.post("/runs", body, 201, key=issuer.token(**claims))
                described = await served_env.client.get_workflow_handle(run["id"]).describe()
                assert (await described.memo())["account"] == "team-a/clerk"


def test_an_issuer_needs_https_and_an_audience(served_env: Environment) -> None:
    for settings in (
        {"BATON_GATEWAY_OIDC_ISSUER": "http://issuer.example", "BATON_GATEWAY_OIDC_AUDIENCE": "a"},
        {"BATON_GATEWAY_OIDC_ISSUER": "https://issuer.example"},
    ):
        with pytest.raises(SettingsError, match="BATON_GATEWAY_OIDC"):
            create_app(Gateway.of(served_env.client, settings))


async def test_a_caller_can_not_read_the_conversation_of_another(served_env: Environment, tmp_path: Path) -> None:
    path, keys = key_file(tmp_path, {"alice": {}, "bob": {}})
    served_env.answer = lambda request: Reply(text=f"{len(request['messages'])} messages")
    async with GatewayServer.running(served_env, BATON_GATEWAY_KEYS=str(path)) as gateway:
        answers: dict[str, list[str]] = {"alice": [], "bob": []}
        for name in ("alice", "alice", "bob"):
            for post, body in (
                ("/runs", {"target": "agent/one", "input": "Why?", "conversation": "c"}),
                (
                    "/ark/v1/queries",
                    {"input": "Why?", "target": {"type": "agent", "name": "one"}, "conversationId": "a"},
                ),
            ):
                sent = body if post == "/runs" else {**body, "name": f"q{len(answers[name])}"}
                response = await gateway.http.post(post, json=sent, headers={"authorization": f"Bearer {keys[name]}"})
                assert response.is_success, response.text
                run = response.json().get("id") or response.json()["metadata"]["uid"]
                await gateway.finished(run, key=keys[name])
                state = await gateway.get(f"/runs/{run}", key=keys[name])
                answers[name].append(state["status"]["message"])
    assert answers == {"alice": ["2 messages", "2 messages", "4 messages", "4 messages"], "bob": ["2 messages"] * 2}
