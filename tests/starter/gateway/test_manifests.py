"""Manifests over HTTP: their drawings, versions, differences and validation, and changes of the store."""

import asyncio
import base64
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from baton.resources.documents import Document
from baton.resources.loader import load_documents
from baton.starter.gateway import manifests as manifests_of_gateway
from baton.starter.operations.manifests import Store, open_store
from tests.harness.environment import Environment, Json, agent, line, manifest, team
from tests.harness.gateway import GatewayServer, key_file, rights
from tests.harness.manifests import model
from tests.harness.postgres import execute


async def test_a_target_is_drawn_with_the_names_of_the_speakers_in_events(gateway: GatewayServer) -> None:
    drawing = await gateway.get("/targets/team/default/duo/drawing")
    (drawn,) = [node for node in drawing["nodes"] if node.get("resource") == "Team/default/duo"]
    inside = {node["speaker"]: node for node in drawing["nodes"] if node.get("parent") == drawn["id"]}
    gateway.env.script(line("one", "a"), line("two", "b"))
    run = await gateway.post("/runs", {"target": "team/duo", "input": "Why?"}, 201)
    events = [event["data"] for event in await gateway.finished(run["id"])]
    started = [event for event in events if event["type"] == "turn.started" and event["team"] == "duo"]
    assert [event["speaker"] for event in started] == [*inside] == ["one", "two"]
    ends = [(edge["start"], edge["end"]) for edge in drawing["edges"]]
    assert ends == [(inside["one"]["id"], inside["two"]["id"]), (inside["two"]["id"], inside["one"]["id"])]
    await gateway.get("/targets/team/default/nobody/drawing", 404)


async def test_the_team_of_a_run_is_drawn_also_if_the_run_has_brought_it(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "a"), line("two", "b"))
    served = await gateway.post("/runs", {"target": "team/duo", "input": "Why?"}, 201)
    await gateway.finished(served["id"])
    drawn = await gateway.get(f"/runs/{served['id']}/drawing")
    assert drawn == {"drawing": await gateway.get("/targets/team/default/duo/drawing"), "isInline": False}

    own = [agent("three"), team("pair", "one", "three", strategy="sequential")]
    gateway.env.script(line("one", "a"), line("three", "b"))
    inline = {"team": "pair", "input": "Why?", "resources": own}
    handle = await gateway.env.client.start_workflow(
        "sequential", inline, id=f"{gateway.env.task_queue}-pair", task_queue=gateway.env.task_queue
    )
    await handle.result()
    drawn = await gateway.get(f"/runs/{handle.id}/drawing")
    assert drawn["isInline"] is True
    assert {node["speaker"] for node in drawn["drawing"]["nodes"] if "speaker" in node} == {"one", "three"}

    gateway.env.script(line("one", "a"))
    alone = await gateway.post("/runs", {"target": "agent/one", "input": "Why?"}, 201)
    await gateway.finished(alone["id"])
    assert await gateway.get(f"/runs/{alone['id']}/drawing") == {"isInline": False}


async def test_of_what_a_caller_may_not_use_a_drawing_has_only_the_name(env: Environment, tmp_path: Path) -> None:
    path, keys = key_file(tmp_path, {"clerk": {"serviceAccount": "clerk"}, "other": {"serviceAccount": "nobody"}})
    allowed = rights(
        "clerk",
        {"resources": ["teams"], "resourceNames": ["duo"]},
        {"resources": ["agents"], "resourceNames": ["one"]},
    )
    two = agent("two", "get-salary", modelRef={"name": "secret-model"})
    secret = {**model(), "metadata": {"name": "secret-model"}}
    manifests = [agent("one"), two, team("duo", "one", "two", maxTurns=1), *allowed]
    async with (
        env.with_manifests([*manifests, SALARY, secret]) as served,
        GatewayServer.running(served, BATON_GATEWAY_KEYS=str(path)) as gateway,
    ):
        where = "/targets/team/default/duo/drawing"
        drawing = await gateway.get(where, key=keys["clerk"])
        texts = [written["text"] for node in drawing["nodes"] for written in node["lines"]]
        assert texts == ["duo", "round-robin · 1 round", "one", "default", "two", "unknown here"]
        assert not any(name in str(drawing) for name in ("secret-model", "get-salary"))
        await gateway.get(where, 404, key=keys["other"])


SALARY = manifest("Tool", "get-salary", {"type": "http", "http": {"url": "http://127.0.0.1:9/salary"}})


def text_of(*manifests: Json) -> str:
    """Manifests as YAML."""
    return yaml.safe_dump_all(manifests, sort_keys=False)


async def test_a_manifest_is_written_read_compared_and_drawn_with_its_versions(gateway: GatewayServer) -> None:
    where = "/manifests/agent/default/three"
    await gateway.get(where, 404)
    first = await gateway.http.put(where, json={"text": text_of(agent("three")), "version": 0})
    assert first.json() == {"applied": "created", "version": 1}
    changed = agent("three", description="The third.")
    second = await gateway.http.put(where, json={"text": text_of(changed), "version": 1})
    assert second.json() == {"applied": "configured", "version": 2}
    same = await gateway.http.put(where, json={"text": text_of(changed), "version": 2})
    assert same.json() == {"applied": "unchanged", "version": 2}
    read = await gateway.get(where)
    assert (read["newest"], read["info"]["source"], read["info"]["writable"]) == (2, "store", True)
    assert yaml.safe_load(read["text"])["spec"]["description"] == "The third."
    old = await gateway.get(f"{where}?version=1")
    assert "description" not in old["text"]
    versions = (await gateway.get(f"{where}/versions"))["versions"]
    assert [each["version"] for each in versions] == [2, 1]
    lines = (await gateway.get(f"{where}/difference?from=1&to=2"))["lines"]
    assert [each["text"].strip() for each in lines if each["kind"] == "added"] == ["description: The third."]
    assert not [each for each in lines if each["kind"] == "removed"]
    drawing = await gateway.get(f"{where}/drawing?version=1")
    assert drawing["title"] == "three"
    assert (await gateway.get(f"{where}?version=9", 404))["error"]["message"].endswith("known: 2, 1")
    await gateway.get(f"{where}?version=x", 400)
    await gateway.get("/manifests/nothing/default/three", 404)


async def test_versions_of_very_many_lines_are_not_compared(gateway: GatewayServer) -> None:
    where = "/manifests/agent/default/three"
    for version in range(2):
        prompt = "\n".join(f"line {number} of {version}" for number in range(5_000))
        written = await gateway.http.put(
            where, json={"text": text_of(agent("three", prompt=prompt)), "version": version}
        )
        assert written.status_code == 200
    refused = await gateway.get(f"{where}/difference?from=1&to=2", 413)
    assert "more than 4,000 lines" in refused["error"]["message"]


async def test_a_list_has_the_manifests_of_the_store_and_of_files(gateway: GatewayServer) -> None:
    written = await gateway.http.put(
        "/manifests/agent/default/three", json={"text": text_of(agent("three")), "version": 0}
    )
    assert written.status_code == 200
    listed = await gateway.get("/manifests")
    rows = {each["id"]: (each["source"], each.get("version")) for each in listed["manifests"]}
    assert rows == {
        "Agent/default/one": ("files", None),
        "Agent/default/two": ("files", None),
        "Agent/default/three": ("store", 1),
        "Team/default/duo": ("files", None),
    }
    assert listed["canStore"] is True
    teams = await gateway.get("/manifests?kind=Team&namespace=default")
    assert [(each["name"], each["strategy"], each["members"]) for each in teams["manifests"]] == [
        ("duo", "round-robin", 2)
    ]
    one = await gateway.get("/manifests/Agent/default/one")
    assert one["usedBy"] == ["Team/default/duo"]
    read = await gateway.get("/manifests/Team/default/duo")
    assert read["refersTo"] == ["Agent/default/one", "Agent/default/two"]
    assert "their runs use that one" in one["warnings"][0]
    assert (await gateway.get("/manifests/Agent/default/three"))["warnings"] == []


async def test_a_write_that_has_not_seen_the_newest_version_is_refused(gateway: GatewayServer) -> None:
    where = "/manifests/agent/default/three"
    await gateway.http.put(where, json={"text": text_of(agent("three")), "version": 0})
    for version in (0, 2):
        body = {"text": text_of(agent("three", description="Mine.")), "version": version}
        refused = await gateway.http.put(where, json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    assert "Mine." not in (await gateway.get(where))["text"]


async def test_validation_says_what_the_loader_says_with_lines(gateway: GatewayServer) -> None:
    wrong = team("crew", "nobody", strategy="selectr", maxTurns=2)
    found = await gateway.post("/manifests/validate", {"text": text_of(wrong)})
    (problem,) = found["problems"]
    assert (problem["resource"], problem["field"], problem["line"]) == ("Team/default/crew", "spec.strategy", 6)
    found = await gateway.post(
        "/manifests/validate", {"text": text_of({**wrong, "spec": {**wrong["spec"], "strategy": "selector"}})}
    )
    assert "is neither in the files nor in the store" in found["problems"][0]["text"]
    of_files = team("crew", "one", "two", strategy="sequential")
    found = await gateway.post("/manifests/validate", {"text": text_of(of_files)})
    assert "is neither in the files nor in the store" in found["problems"][0]["text"], "baton apply says the same"
    members = [agent("ann"), agent("bob"), team("crew", "ann", "bob", strategy="sequential")]
    found = await gateway.post("/manifests/validate", {"text": text_of(*members)})
    assert found["ids"] == ["Agent/default/ann", "Agent/default/bob", "Team/default/crew"]
    speakers = [node["speaker"] for node in found["drawing"]["nodes"] if "speaker" in node]
    assert (found["problems"], speakers) == ([], ["ann", "bob"])
    for text in ("{", "", "a: [", "x: &x [*x]", "[" * 2_000, "kind: Agent"):
        assert (await gateway.post("/manifests/validate", {"text": text}))["problems"], text
    literal = manifest(
        "Model",
        "m",
        {"type": "openai", "model": {"value": "x"}, "config": {"openai": {"apiKey": {"value": "sk-literal-1"}}}},
    )
    found = await gateway.post("/manifests/validate", {"text": text_of(literal)})
    assert "is a literal secret" in found["problems"][0]["text"]
    assert "sk-literal-1" not in str(found)


async def test_quotas_are_not_written_over_http_so_that_no_tenant_raises_its_own(gateway: GatewayServer) -> None:
    quota = text_of(manifest("Quota", "limits", {"maxConcurrentRuns": 9}))
    refused = await gateway.http.put("/manifests/quota/default/limits", json={"text": quota, "version": 0})
    assert (refused.status_code, "use baton apply" in refused.text) == (403, True)
    applied = await gateway.http.post("/manifests/apply", json={"text": quota})
    assert applied.status_code == 403, applied.text


async def test_neither_secrets_nor_rights_are_written_or_shown_over_http(gateway: GatewayServer) -> None:
    secret: Json = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s"},
        "stringData": {"key": "value-of-s"},
    }
    refused = await gateway.http.put("/manifests/secret/default/s", json={"text": text_of(secret), "version": 0})
    assert refused.status_code == 403
    role = rights("clerk", {"resources": ["*"]})[1]
    refused = await gateway.http.put("/manifests/role/default/clerk", json={"text": text_of(role), "version": 0})
    assert refused.status_code == 403
    async with open_store({**gateway.env.worker_env, "BATON_ENCRYPTION_KEYS": NEW_KEYS}) as store:
        await store.apply(load_documents([Document("s.yaml", secret, {})]))
    await gateway.get("/manifests/secret/default/s", 404)
    await gateway.get("/manifests/secret/default/s/versions", 404)
    listed = await gateway.get("/manifests")
    assert not [each for each in listed["manifests"] if each["kind"] == "Secret"]


async def test_only_what_a_role_lets_a_caller_update_is_written(env: Environment, tmp_path: Path) -> None:
    path, keys = key_file(
        tmp_path,
        {
            "writer": {"serviceAccount": "writer"},
            "reader": {"serviceAccount": "reader"},
            "all": {"serviceAccount": "all", "allRuns": True},
        },
    )
    writer = rights(
        "writer",
        {"resources": ["agents"], "resourceNames": ["mine", "one"], "verbs": ["use", "update"]},
        {"resources": ["models"], "resourceNames": ["default"]},
    )
    reader = rights("reader", {"resources": ["agents"]})
    everything = rights("all", {"resources": ["*"], "verbs": ["*"]})
    manifests = [agent("one"), agent("other"), SALARY, *writer, *reader, *everything]
    async with (
        env.with_manifests(manifests) as served,
        GatewayServer.running(served, BATON_GATEWAY_KEYS=str(path)) as gateway,
    ):

        async def put(who: str, name: str, manifest: Json) -> httpx.Response:
            headers = {"authorization": f"Bearer {keys[who]}"}
            body = {"text": text_of(manifest), "version": 0}
            return await gateway.http.put(f"/manifests/agent/default/{name}", json=body, headers=headers)

        for who in ("reader", "all"):
            refused = await put(who, "mine", agent("mine"))
            assert refused.status_code == 403, refused.text
            assert "verb 'update'" in refused.json()["error"]["message"]
        assert (await put("writer", "yours", agent("yours"))).status_code == 403
        assert (await put("writer", "mine", agent("yours"))).status_code == 400
        assert (await put("writer", "mine", agent("mine"))).json() == {"applied": "created", "version": 1}
        steals = agent("one", parameters=[{"name": "x", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}}])
        refused = await put("writer", "one", {**steals, "spec": {**steals["spec"], "prompt": "{{.x}}"}})
        assert (refused.status_code, "may not get secrets" in refused.text) == (403, True)
        refused = await put("writer", "one", agent("one", "get-salary"))
        assert (refused.status_code, "get-salary" in refused.text) == (400, True)
        seen = await gateway.get("/manifests", key=keys["writer"])
        assert [(each["id"], each["writable"]) for each in seen["manifests"]] == [
            ("Agent/default/mine", True),
            ("Agent/default/one", True),
        ]
        await gateway.get("/manifests/agent/default/other", 404, key=keys["writer"])
        await gateway.get("/manifests/role/default/writer", 404, key=keys["writer"])
        await gateway.get("/manifests/tool/default/get-salary/versions", 404, key=keys["writer"])
        unseen = agent("mine", "get-salary")
        validated = await gateway.post("/manifests/validate", {"text": text_of(unseen)}, key=keys["writer"])
        assert "http://127.0.0.1:9" not in str(validated)


async def test_a_query_is_written_with_the_rights_of_its_writer_only(env: Environment, tmp_path: Path) -> None:
    path, keys = key_file(tmp_path, {"writer": {"serviceAccount": "writer"}})
    writer = rights(
        "writer",
        {"resources": ["queries"], "verbs": ["update"]},
        {"resources": ["agents"], "resourceNames": ["one"]},
    )
    shown, hidden = ({**agent(name), "metadata": {"name": name, "labels": {"team": "s"}}} for name in ("one", "hidden"))
    manifests = [shown, hidden, *writer, *rights("admin", {"resources": ["*"], "verbs": ["*"]})]
    one: Json = {"input": "Why?", "targets": [{"type": "agent", "name": "one"}]}
    async with (
        env.with_manifests(manifests) as served,
        GatewayServer.running(served, BATON_GATEWAY_KEYS=str(path)) as gateway,
    ):
        async with open_store(served.worker_env) as store:
            written = [shown, manifest("Query", "report", {**one, "serviceAccount": "admin"})]
            await store.apply(load_documents([Document("q.yaml", each, {}) for each in written]))

        async def put(name: str, spec: Json, version: int = 0) -> httpx.Response:
            body = {"text": text_of(manifest("Query", name, spec)), "version": version}
            headers = {"authorization": f"Bearer {keys['writer']}"}
            return await gateway.http.put(f"/manifests/query/default/{name}", json=body, headers=headers)

        hook = {"notify": [{"url": "https://example.com/hook"}]}
        for name, version in (("mine", 0), ("report", 1)):
            for account in ({"serviceAccount": "admin"}, {}):
                refused = await put(name, {**one, **account, **hook}, version)
                assert refused.status_code == 403, refused.text
                assert "write your own, default/writer" in refused.json()["error"]["message"]
            selecting = {"input": "Why?", "selector": {"matchLabels": {"team": "s"}}}
            refused = await put(name, {**selecting, "serviceAccount": "writer"}, version)
            assert (refused.status_code, "hidden" in refused.text) == (403, False), refused.text
            assert "spec.selector" in refused.json()["error"]["message"]
            assert (await put(name, {**one, "serviceAccount": "writer"}, version)).status_code == 200
        text = text_of(manifest("Query", "other", {**one, "serviceAccount": "admin"}))
        await gateway.post("/manifests/apply", {"text": text}, 403, key=keys["writer"])


READER = [*rights("clerk", {"resources": ["agents"], "resourceNames": ["public"]}), agent("public")]


async def test_the_roles_of_workers_count_while_none_is_live(
    env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("targets", "manifests"):
        monkeypatch.setattr(f"baton.starter.gateway.{module}.FRESH_SECONDS", 0)
    path, keys = key_file(tmp_path, {"clerk": {"serviceAccount": "clerk"}, "root": {"allRuns": True}})
    clerk, hidden = keys["clerk"], "/manifests/agent/default/hidden"

    async def seen(gateway: GatewayServer) -> list[tuple[str, str]]:
        listed = (await gateway.get("/manifests", key=clerk))["manifests"]
        return [(each["id"], each["source"]) for each in listed]

    async with contextlib.AsyncExitStack() as stack:
        async with env.with_manifests(READER) as served:
            async with open_store(served.worker_env) as store:
                await store.apply(load_documents([Document("s.yaml", agent("hidden"), {})]))
            gateway = await stack.enter_async_context(GatewayServer.running(served, BATON_GATEWAY_KEYS=str(path)))
            while not await seen(gateway):
                pass
            await gateway.get(hidden, 404, key=clerk)
        assert await seen(gateway) == [("Agent/default/public", "files")]
        assert (await gateway.get("/manifests/agent/default/public", key=clerk))["warnings"]
        for address in (hidden, f"{hidden}/versions", f"{hidden}/difference?from=1", f"{hidden}/drawing"):
            await gateway.get(address, 503, key=clerk)
        # One that has started since then does not know whose Roles count.
        other = await stack.enter_async_context(GatewayServer.running(served, BATON_GATEWAY_KEYS=str(path)))
        for address in ("/manifests", hidden, f"{hidden}/versions", "/targets/agent/default/hidden/drawing"):
            await other.get(address, 503, key=clerk)
        assert (await other.get("/targets", key=clerk))["targets"] == []
        asked = {"target": "agent/public", "input": "Why?"}
        refused = await other.http.post("/runs", json=asked, headers={"authorization": f"Bearer {clerk}"})
        assert (refused.status_code, "Roles" in refused.text, refused.headers["retry-after"]) == (503, True, "1")
        await other.post("/manifests/validate", {"text": text_of(agent("x"))}, 503, key=clerk)
        await other.get(hidden, key=keys["root"])
        # With Roles in the store, it knows that nobody else may.
        async with open_store(served.worker_env) as store:
            stored = [*rights("clerk", {"resources": ["agents"], "resourceNames": ["public"]}), agent("public")]
            await store.apply(load_documents([Document("r.yaml", each, {}) for each in stored]))
        assert await seen(other) == [("Agent/default/public", "store")]
        await other.get(hidden, 503, key=clerk)


async def test_a_gateway_that_has_not_reached_the_journal_yet_says_when_to_try_again(env: Environment) -> None:
    async with GatewayServer.running(env, BATON_JOURNAL_URL="postgresql://postgres@127.0.0.1:1/none") as gateway:
        refused = await gateway.http.get("/targets")
        assert (refused.status_code, refused.headers.get("retry-after")) == (503, "2")


async def test_each_change_is_logged_with_its_caller(gateway: GatewayServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "baton.starter.gateway.manifests")
    three, four = "Agent/default/three", "Agent/default/four"
    labeled = {**agent("three"), "metadata": {"name": "three", "labels": {"of": "test"}}}
    for dry in (True, False):
        await gateway.post("/manifests/apply", {"text": text_of(labeled), "dryRun": dry})
    pruning: Json = {"text": text_of(agent("four")), "prune": {"labels": {"of": "test"}}}
    for _ in range(2):
        await gateway.post("/manifests/apply", pruning)
    for dry in (True, False):
        await gateway.post("/manifests/delete", {"ids": ["agent/default/four"], "dryRun": dry})
    logged = [each.getMessage() for each in caplog.records if each.name == "baton.starter.gateway.manifests"]
    local = "local (default/default) has"
    assert logged == [
        f"{local} written {three}: created",
        f"{local} written {four}: created",
        f"{local} deleted {three}",
        f"{local} written {four}: unchanged",
        f"{local} deleted {four}",
    ]


async def test_a_namespace_that_is_not_served_is_seen_only_with_rights(env: Environment, tmp_path: Path) -> None:
    path, keys = key_file(tmp_path, {"alice": {}, "root": {"allRuns": True}})
    async with (
        env.with_manifests([agent("one")]) as served,
        GatewayServer.running(served, BATON_GATEWAY_KEYS=str(path), BATON_GATEWAY_NAMESPACES="elsewhere") as gateway,
    ):
        assert (await gateway.get("/manifests", key=keys["alice"]))["manifests"] == []
        await gateway.get("/manifests/agent/default/one", 404, key=keys["alice"])
        (seen,) = (await gateway.get("/manifests", key=keys["root"]))["manifests"]
        assert (seen["id"], seen["writable"]) == ("Agent/default/one", False)


async def test_a_text_that_is_too_long_is_refused(gateway: GatewayServer) -> None:
    refused = await gateway.post("/manifests/validate", {"text": "x" * 400_001}, 400)
    assert refused["error"]["param"] == "text"


NEW_KEYS = "k1:" + base64.b64encode(bytes(32)).decode()


async def test_a_refusal_names_no_manifest_that_can_not_be_read_of_others(env: Environment, tmp_path: Path) -> None:
    path, keys = key_file(tmp_path, {"writer": {"serviceAccount": "writer"}, "both": {"serviceAccount": "both"}})
    agents = {"resources": ["agents", "models"], "verbs": ["use", "update"]}
    both = rights("both", agents)
    theirs = [{**each, "metadata": {**each["metadata"], "namespace": "theirs"}} for each in both[1:]]
    theirs[1]["subjects"] = [{**both[2]["subjects"][0], "namespace": "default"}]
    plans = {**agent("plans"), "metadata": {"name": "plans", "namespace": "theirs"}}
    async with (
        env.with_manifests([agent("one"), *rights("writer", agents), *both, *theirs]) as served,
        GatewayServer.running(served, BATON_GATEWAY_KEYS=str(path)) as gateway,
    ):
        async with open_store(served.worker_env) as store:
            await store.apply(load_documents([Document("plans.yaml", plans, {})]))
        await execute(served.journal_address, "update baton_manifests set manifest = '{}' where name = 'plans'")
        where = "/manifests/agent/default/mine"
        body = {"text": text_of(agent("mine")), "version": 0}
        told = {}
        for who, key in keys.items():
            response = await gateway.http.put(where, json=body, headers={"authorization": f"Bearer {key}"})
            assert response.status_code == 409, response.text
            told[who] = response.json()["error"]["message"]
    assert told["writer"] == "a stored manifest that you may not see can't be read; nothing was written or deleted"
    assert told["both"].startswith("the stored manifest Agent/theirs/plans")


async def test_the_usage_under_the_quotas_of_the_served_workers_is_listed(env: Environment) -> None:
    """A gateway serves the task queue of its settings, not that of its process."""
    quota = manifest("Quota", "tokens", {"perDay": {"tokens": 5}})
    async with env.with_manifests([agent("one"), quota]) as served, GatewayServer.running(served) as gateway:
        (found,) = (await gateway.get("/quotas"))["quotas"]
    assert (found["quota"], found["most"]) == ("default/tokens", 5)


async def test_requests_beyond_those_that_use_the_store_at_once_wait_for_their_turn(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has connections of its own: a database has few for all."""
    await gateway.http.put("/manifests/agent/default/three", json={"text": text_of(agent("three")), "version": 0})
    opened, allowed = asyncio.Semaphore(0), asyncio.Event()
    count = 0

    @contextlib.asynccontextmanager
    async def counted(*given: Any) -> AsyncIterator[Store]:
        nonlocal count
        count += 1
        opened.release()
        await allowed.wait()
        async with open_store(*given) as store:
            yield store

    await gateway.get("/manifests/agent/default/three")  # what all requests read is cached for a moment
    monkeypatch.setattr(manifests_of_gateway, "open_store", counted)
    monkeypatch.setattr(manifests_of_gateway, "FRESH_SECONDS", 3600)
    async with asyncio.TaskGroup() as group:
        where = "/manifests/agent/default/three/versions"
        requests = [group.create_task(gateway.get(where)) for _ in range(manifests_of_gateway.CONCURRENT_STORES + 3)]
        for _ in range(manifests_of_gateway.CONCURRENT_STORES):
            await opened.acquire()
        await gateway.get("/manifests/agent/default/three")  # by now the others have come as far as they can
        at_once = count
        allowed.set()
    assert at_once == manifests_of_gateway.CONCURRENT_STORES
    assert [len(request.result()["versions"]) for request in requests] == [1] * len(requests)
