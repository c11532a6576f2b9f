"""Who may use the gateway, and what its callers see."""

import asyncio
import datetime
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from baton.contracts.settings import SettingsError
from baton.resources.approval import caller_name
from baton.resources.documents import Document
from baton.resources.loader import load_documents
from baton.resources.rights import AccountName
from baton.starter.gateway.access import LOCAL, Caller, KeyEntry, add_key, hash_of, is_loopback, new_key, read_keys
from baton.starter.gateway.app import Gateway, create_app
from baton.starter.gateway.owners import conversation_of
from baton.starter.gateway.server import check_address, notes_at_start
from baton.starter.operations.manifests import manifests_of_workers
from baton.starter.scripted_model import serve_in_thread
from baton.testing import Reply
from baton.worker import run_worker
from tests.harness.environment import Environment, agent, call, line, manifest
from tests.harness.gateway import GatewayServer, Json, key_file, rights
from tests.harness.processes import baton, process_env
from tests.starter.gateway.test_approvers import waiting

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


@pytest.mark.full
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


@pytest.mark.full
async def test_an_account_that_workers_refuse_is_named_when_its_key_is_made_and_when_a_gateway_starts(
    served_env: Environment, tmp_path: Path
) -> None:
    path = tmp_path / "keys.yaml"
    for name, account in (("alice", "clerk"), ("bob", "support/bot")):
        made = await asyncio.to_thread(
            baton, "gateway-key", name, "-f", path, "--service-account", account, env=process_env()
        )
        assert "baton/allow-inline" in made.stderr
    accounts = {caller.name: str(caller.account) for caller in read_keys(path).values()}
    assert accounts == {"alice": "default/clerk", "bob": "support/bot"}
    allowed: Json = {"metadata": {"name": "clerk", "annotations": {"baton/allow-inline": "true"}}}
    role = {"resources": ["agents"]}
    for annotated in ({}, allowed):
        documents = [agent("one"), *rights("clerk", role)]
        documents[1] |= annotated
        loaded = load_documents([Document("manifests.yaml", each, {}) for each in documents])
        env = replace(served_env, task_queue=uuid.uuid4().hex, catalog=loaded)
        async with run_worker(env.client, loaded, env.worker_env):
            while not (await manifests_of_workers(env.client, env.worker_env)).catalog.manifests:
                await asyncio.sleep(0.02)
            variables = {"BATON_GATEWAY_KEYS": str(path), "BATON_GATEWAY_NAMESPACES": "default"}
            served, *refused = await notes_at_start(Gateway.of(env.client, {**env.worker_env, **variables}))
        assert served == "Served: agent/one"  # which the account of a gateway without keys may not use
        assert ["default/clerk" in note for note in refused] == ([False] if annotated else [True, False])


@pytest.mark.full
async def test_temporal_finds_the_runs_of_a_caller_without_those_of_others(
    served_env: Environment, tmp_path: Path
) -> None:
    """A run that an earlier release has started has no attribute, and is listed nevertheless."""
    path, keys = key_file(tmp_path, {"alice": {}, "bob": {}})
    served_env.script(line("one", "a", "b", "c", "d"))
    async with GatewayServer.running(served_env, BATON_GATEWAY_KEYS=str(path)) as gateway:
        body = {"target": "agent/one", "input": "Why?"}
        own = (await gateway.post("/runs", body, 201, key=keys["alice"]))["id"]
        for _ in range(2):
            await gateway.post("/runs", body, 201, key=keys["bob"])
        alice = Caller("alice", AccountName("default", "default"))
        earlier = await served_env.client.start_workflow(
            "query",
            {"name": "one", "spec": {"input": "Why?", "targets": [{"type": "agent", "name": "one"}]}},
            id=f"earlier-{own}",
            task_queue=served_env.task_queue,
            memo={"caller": alice.name, "account": str(alice.account), "query": "one", "namespace": "default"},
        )
        await served_env.find_runs("WorkflowType = 'query'", 4)
        found = f"(BatonCaller = '{alice.digest}' OR BatonCaller IS NULL)"
        assert {*await served_env.find_runs(f"WorkflowType = 'query' AND {found}", 2)} == {own, earlier.id}
        listed = (await gateway.get("/runs", key=keys["alice"]))["runs"]
        assert {each["id"] for each in listed} == {own, earlier.id}


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


@pytest.mark.full
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


def test_a_key_that_is_named_as_this_machine_is_a_key(tmp_path: Path) -> None:
    """Its holder is verified, and has no conversations of the command line."""
    path, _ = key_file(tmp_path, {"local": {"allRuns": True}})
    (caller,) = read_keys(path).values()
    assert caller == LOCAL
    assert caller.is_verified
    assert conversation_of(caller, "notes") != conversation_of(LOCAL, "notes") == "notes"


def test_a_slash_in_the_name_of_a_caller_leads_into_no_conversation_of_another() -> None:
    account = AccountName("default", "ci")
    build, deploy = (Caller(f"spiffe://corp/build{end}", account) for end in ("", "/deploy"))
    named = [conversation_of(build, "deploy/secret"), conversation_of(deploy, "secret")]
    escaped = [conversation_of(Caller(name, account), "c") for name in ("a/b", "a%2Fb", "a%252Fb")]
    assert len({*named, *escaped}) == 5
    assert conversation_of(deploy, named[1]) == named[1], "what it has been told names its conversation"
    assert conversation_of(Caller("ann@example.com", account), "c/d") == "default/ci/ann@example.com/c/d"


def test_a_key_is_added_to_a_file_that_only_its_owner_reads_unless_it_was_opened_to_others(tmp_path: Path) -> None:
    path, key = tmp_path / "keys.yaml", new_key()
    add_key(path, KeyEntry(name="alice", sha256=hash_of(key), service_account="clerk"))
    add_key(path, KeyEntry(name="bob", sha256=hash_of(new_key())))
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    add_key(path, KeyEntry(name="carol", sha256=hash_of(new_key())))
    assert path.stat().st_mode & 0o777 == 0o644, "its owner has let a container's user read it"
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


async def test_a_revoked_key_is_refused_without_a_restart(served_env: Environment, tmp_path: Path) -> None:
    path, keys = key_file(tmp_path, {"alice": {}, "bob": {}})
    settings = {"BATON_GATEWAY_KEYS": str(path), "BATON_GATEWAY_KEYS_RELOAD": "0"}
    async with GatewayServer.running(served_env, **settings) as gateway:
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


@pytest.mark.full
async def test_a_new_key_of_the_issuer_is_fetched(served_env: Environment) -> None:
    with Issuer().serving() as issuer:
        settings = {
            "BATON_GATEWAY_OIDC_ISSUER": issuer.url,
            "BATON_GATEWAY_OIDC_AUDIENCE": AUDIENCE,
            "BATON_GATEWAY_OIDC_REFRESH": "0",
        }
        async with GatewayServer.running(served_env, **settings) as gateway:
            old = issuer.token()
            await gateway.get("/targets", key=old)
            issuer.rotate("k2")
            await gateway.get("/targets", key=issuer.token())
            await gateway.get("/targets", 401, key=old)


async def test_a_token_is_not_called_invalid_while_the_issuer_can_not_be_reached(served_env: Environment) -> None:
    with Issuer().serving() as issuer:
        token = issuer.token()
    settings = {"BATON_GATEWAY_OIDC_ISSUER": issuer.url, "BATON_GATEWAY_OIDC_AUDIENCE": AUDIENCE}
    async with GatewayServer.running(served_env, **settings) as gateway:
        for _ in range(2):
            await gateway.get("/targets", 503, key=token)


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


@pytest.mark.full
async def test_claims_of_a_token_are_a_verified_name_and_groups(env: Environment) -> None:
    """Groups are a text or a list; what is no text is no group. A token without the claim of the name is refused."""
    long = f"spiffe://example.com/{'team/' * 12}ann"
    approval = {"approvers": [{"names": ["ann@example.com", long], "groups": ["finance"]}]}
    order = manifest("Tool", "order", {"type": "agent", "agent": {"name": "shop"}, "approval": approval})
    variables = {"BATON_IDENTITY_KEY": "k" * 32}
    asks: list[Json] = [
        {"email": "ann@example.com"},
        {"email": long},
        {"roles": "finance"},
        {"roles": [7, None, "finance"]},
    ]
    others: list[Json] = [
        {"roles": "finance sales"},
        {"roles": {"finance": True}},
        {"groups": ["finance"]},
        {"sub": "ann@example.com"},
    ]
    with Issuer().serving() as issuer:
        settings = {
            "BATON_GATEWAY_OIDC_ISSUER": issuer.url,
            "BATON_GATEWAY_OIDC_AUDIENCE": AUDIENCE,
            "BATON_GATEWAY_OIDC_NAME_CLAIM": "email",
            "BATON_GATEWAY_OIDC_GROUPS_CLAIM": "roles",
        }
        manifests = [agent("buyer", "order"), agent("shop"), order]
        async with replace(env, variables=variables).with_manifests(manifests) as served:
            served.script(line("buyer", call("order", input="1"), "Ordered."), line("shop", "Confirmed."))
            async with GatewayServer.running(served, **variables, **settings) as gateway:
                await gateway.get("/inbox", 401, key=issuer.token())
                await gateway.get("/inbox", 401, key=issuer.token(email=["ann@example.com"]))
                eve: Json = {"email": "eve@example.com"}
                for claims in asks + others:
                    key = issuer.token(**{**eve, **claims})
                    run = await gateway.post("/runs", {"target": "agent/buyer", "input": "Buy!"}, 201, key=key)
                    waits = await waiting(gateway, key, run["id"])
                    assert ("refusal" in waits) == (claims in others), claims
                    answer = await gateway.post(
                        f"/runs/{run['id']}/approve",
                        {"call": waits["decision"]["id"]},
                        409 if claims in others else 200,
                        key=key,
                    )
                    if claims in asks:
                        decision = answer["decision"]
                        name = caller_name(str({**eve, **claims}["email"]))
                        assert (decision["by"], decision["verified"]) == (name, True)
                        assert decision.get("groups", []) == (["finance"] if "roles" in claims else [])


def test_an_issuer_needs_https_and_an_audience(served_env: Environment) -> None:
    for settings in (
        {"BATON_GATEWAY_OIDC_ISSUER": "http://issuer.example", "BATON_GATEWAY_OIDC_AUDIENCE": "a"},
        {"BATON_GATEWAY_OIDC_ISSUER": "https://issuer.example"},
    ):
        with pytest.raises(SettingsError, match="BATON_GATEWAY_OIDC"):
            create_app(Gateway.of(served_env.client, settings))


@pytest.mark.full
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
