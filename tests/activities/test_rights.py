"""Rights: what a query's ServiceAccount may use is checked before any model is asked, and where a Secret is read."""

import json
from typing import Any

import pytest
import yaml

from baton.activities.context.value_resolver import ValueResolver
from baton.activities.runtime.secrets import RunSecrets, SecretStore
from baton.contracts.errors import KeyMissing, RightMissing
from baton.resources.model import Model
from baton.resources.rights import AccountName, Use, missing_rights
from baton.resources.run_catalog import RunCatalog
from tests.activities.test_inline_manifests import OF_KEY, failure_of, loaded, model, secret, working
from tests.harness.environment import Environment, Json, agent, call, line, manifest
from tests.harness.manifests import Writer
from tests.harness.tool_server import ToolServer

RBAC = "rbac.authorization.k8s.io/v1"
ARK = "ark.mckinsey.com"


def account(name: str, brought: bool = False, namespace: str = "default") -> Json:
    annotations = {"baton/allow-inline": "true"} if brought else {}
    metadata = {"name": name, "namespace": namespace, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}


def rule(*resources: str, group: str = ARK, names: tuple[str, ...] = (), verbs: tuple[str, ...] = ("use",)) -> Json:
    return {"apiGroups": [group], "resources": [*resources], "verbs": [*verbs], "resourceNames": [*names]}


def role(name: str, *rules: Json, namespace: str = "default") -> Json:
    return {"apiVersion": RBAC, "kind": "Role", "metadata": {"name": name, "namespace": namespace}, "rules": [*rules]}


def binding(name: str, *accounts: str, namespace: str = "default") -> Json:
    return {
        "apiVersion": RBAC,
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": each} for each in accounts],
    }


CLERK = (account("clerk", brought=True), binding("clerk", "clerk"))
LOOK = manifest("Tool", "look", {"type": "http", "http": {"url": "http://127.0.0.1:1"}})


def asks(name: str = "a", **spec: Any) -> Json:
    return {"spec": {"input": "Why?", "target": {"type": "agent", "name": name}, **spec}}


async def refused(env: Environment, given: Json, *own: Json, workflow: str = "query", **options: Any) -> str:
    """Why a run is refused as it begins; nobody is asked."""
    async with working(env, *own, **options) as here:
        kind, text = await failure_of(here, workflow, given)
    assert kind in ("RightMissing", "InvalidInput"), text
    assert env.model.requests == []
    return text


async def answered(env: Environment, given: Json, *own: Json, **options: Any) -> str:
    async with working(env, *own, **options) as here:
        here.script(line("a", "Here."))
        status = await here.status(await here.start("query", given))
    assert status.phase == "Completed", status.failure
    return status.message


async def test_a_query_may_use_what_a_role_of_its_service_account_allows(env: Environment) -> None:
    of_clerk = role("clerk", rule("agents", names=("a",)))
    assert await answered(env, asks(serviceAccount="clerk"), agent("a"), of_clerk, *CLERK) == "Here."


def cluster(kind: str, name: str, **fields: object) -> Json:
    return {"apiVersion": RBAC, "kind": kind, "metadata": {"name": name}, **fields}


EVERYTHING = cluster("ClusterRole", "all", rules=[rule("*", verbs=("*",))])
ALL_OF_CLUSTER = {"kind": "ClusterRole", "name": "all"}


async def test_a_role_binding_gives_the_rights_of_a_cluster_role_in_its_namespace(env: Environment) -> None:
    bound = {**binding("clerk", "clerk"), "roleRef": ALL_OF_CLUSTER}
    own = [agent("a"), account("clerk", brought=True)]
    assert "may not use agents 'default/a'" in await refused(env, asks(serviceAccount="clerk"), *own, bound)
    elsewhere = {**binding("clerk", "clerk", namespace="other"), "roleRef": ALL_OF_CLUSTER}
    text = await refused(env, asks(serviceAccount="clerk"), *own, EVERYTHING, elsewhere)
    assert "may not use agents 'default/a'" in text
    assert await answered(env, asks(serviceAccount="clerk"), *own, EVERYTHING, bound) == "Here."


async def test_a_cluster_role_binding_gives_rights_in_all_namespaces_and_restricts_all(env: Environment) -> None:
    subject = {"kind": "ServiceAccount", "name": "clerk", "namespace": "default"}
    bound = cluster("ClusterRoleBinding", "clerk", roleRef=ALL_OF_CLUSTER, subjects=[subject])
    own = [agent("a"), account("clerk", brought=True), EVERYTHING, bound]
    assert "the ServiceAccount default/default may not use agents" in await refused(env, asks(), *own)
    assert await answered(env, asks(serviceAccount="clerk"), *own) == "Here."
    assert await answered(env, asks(), agent("a"), EVERYTHING) == "Here.", "a ClusterRole alone restricts nothing"


def test_what_has_no_namespace_may_not_name_one(write: Writer) -> None:
    (problem,) = write.refusal({**EVERYTHING, "metadata": {"name": "all", "namespace": "default"}})
    assert "metadata.namespace: is not allowed: a ClusterRole has none" in problem


async def test_what_no_role_allows_is_refused_before_any_model_is_asked_with_the_manifests_that_allow_it(
    env: Environment,
) -> None:
    own = [agent("a", "look"), LOOK, agent("b"), *CLERK]
    of_clerk = role("clerk", rule("agents", names=("b",)))
    text = await refused(env, asks(serviceAccount="clerk"), *own, of_clerk)
    assert text.startswith("the ServiceAccount default/clerk may not use agents 'default/a', use tools 'default/look':")
    would = [*yaml.safe_load_all(text.partition("\n")[2])]
    assert [each["kind"] for each in would] == ["Role", "RoleBinding"]
    assert await answered(env, asks(serviceAccount="clerk"), *own, of_clerk, *would) == "Here."


async def test_a_query_without_a_service_account_has_the_rights_of_the_one_named_default(env: Environment) -> None:
    own = [agent("a"), role("all", rule("*", verbs=("*",)))]
    assert "the ServiceAccount default/default may not use agents" in await refused(env, asks(), *own)
    assert await answered(env, asks(), *own, binding("all", "default")) == "Here."


async def test_a_team_that_is_started_without_a_query_has_the_rights_of_the_account_named_default(
    env: Environment,
) -> None:
    given = {"agent": "a", "input": "Why?"}
    text = await refused(env, given, agent("a"), account("default"), workflow="agent")
    assert "the ServiceAccount default/default may not use agents 'default/a'" in text


@pytest.mark.parametrize(
    "allowed",
    [
        rule("agents", names=("b",)),
        rule("teams"),
        rule("agents", group="other"),
        rule("agents", verbs=("list", "delete")),
    ],
)
async def test_another_name_kind_group_or_verb_is_no_right(env: Environment, allowed: Json) -> None:
    text = await refused(env, asks(serviceAccount="clerk"), agent("a"), role("clerk", allowed), *CLERK)
    assert "may not use agents 'default/a'" in text


async def test_a_namespace_without_rights_stays_open(env: Environment) -> None:
    own = agent("a"), account("clerk", namespace="office"), role("r", namespace="office")
    assert await answered(env, asks(), *own) == "Here."


async def test_an_account_of_another_namespace_has_no_rights_here_by_its_name(env: Environment) -> None:
    own = agent("a"), role("clerk", rule("*")), *CLERK, account("clerk", brought=True, namespace="office")
    given = {**asks(serviceAccount={"name": "clerk", "namespace": "office"})}
    assert "the ServiceAccount office/clerk may not use agents" in await refused(env, given, *own)


async def test_a_run_can_not_give_itself_rights(env: Environment) -> None:
    own = agent("a"), role("clerk", rule("teams")), *CLERK
    for brought in (role("clerk", rule("*")), role("mine", rule("*")), binding("clerk", "clerk", "default")):
        text = await refused(env, {**asks(serviceAccount="clerk"), "resources": [brought]}, *own)
        assert "can't define or change rights" in text
    unchanged = {**asks(serviceAccount="clerk"), "resources": [*own]}
    assert "may not use agents" in await refused(env, unchanged, *own)


async def test_a_run_can_not_take_an_account_that_is_not_for_runs(env: Environment) -> None:
    own = agent("a"), role("chief", rule("*")), binding("chief", "chief"), account("chief")
    assert "can't use the ServiceAccount default/chief" in await refused(env, asks(serviceAccount="chief"), *own)
    asked = manifest("Query", "q", asks(serviceAccount="chief")["spec"])
    assert await answered(env, {"name": "q"}, *own, asked) == "Here."
    assert await answered(env, asks(serviceAccount="chief"), *own, trust="all") == "Here."


async def test_what_a_run_brings_itself_needs_no_right(env: Environment) -> None:
    own = agent("a"), account("clerk")
    changed = agent("a", description="mine")
    assert await answered(env, {**asks(), "resources": [changed]}, *own) == "Here."


async def test_an_agent_of_the_worker_needs_a_right_also_where_a_run_replaces_its_model(env: Environment) -> None:
    own = agent("a", modelRef={"name": "gpt"}), model("http://127.0.0.1:1"), account("clerk")
    text = await refused(env, {**asks(), "resources": [model(env.model_url)]}, *own)
    assert "may not use agents 'default/a'" in text


async def test_a_secret_needs_a_right_of_its_own_which_a_literal_key_does_not(env: Environment) -> None:
    own = [agent("a", modelRef={"name": "gpt"}), secret(), *CLERK]
    of_clerk = role("clerk", rule("agents", "models"))
    keyed = model(env.model_url, apiKey=OF_KEY)
    text = await refused(env, asks(serviceAccount="clerk"), *own, keyed, of_clerk)
    assert "the ServiceAccount default/clerk may not get secrets 'default/keys'" in text
    may_read = role("clerk", *of_clerk["rules"], rule("secrets", group="", names=("keys",), verbs=("get",)))
    assert await answered(env, asks(serviceAccount="clerk"), *own, keyed, may_read) == "Here."
    literal = model(env.model_url, apiKey="sk-literal-0123456789")
    assert await answered(env, asks(serviceAccount="clerk"), *own, literal, of_clerk) == "Here."


def test_an_error_with_missing_rights_does_not_name_secrets_of_another_namespace() -> None:
    clerk = AccountName("default", "clerk")
    lacking = [Use.of_secret("others", "keys"), Use.of_secret("default", "own"), Use(ARK, "agents", "others", "a")]
    text = missing_rights(clerk, lacking)
    for said in ("get secrets of the namespace 'others'", "get secrets 'default/own'", "use agents 'others/a'"):
        assert said in text
    assert "keys" not in text
    assert "keys" not in missing_rights(clerk, lacking[:1])


@pytest.mark.parametrize("is_permitted", [False, True])
def test_an_error_of_a_run_does_not_name_a_secret_of_another_team(is_permitted: bool) -> None:  # pytest
    theirs = {**model("http://127.0.0.1:1", apiKey=OF_KEY), "metadata": {"name": "gpt", "namespace": "others"}}
    rules = [rule("models"), *([rule("secrets", group="", verbs=("get",))] if is_permitted else [])]
    subject = {"kind": "ServiceAccount", "name": "clerk", "namespace": "default"}
    bound = {**binding("clerk", namespace="others"), "subjects": [subject]}
    own = loaded(theirs, role("clerk", *rules, namespace="others"), bound, *CLERK)
    catalog = RunCatalog.of_files(own.catalog).with_account("default/clerk")
    found = catalog.by_id("Model/others/gpt")
    assert isinstance(found, Model)
    assert found.spec.connection
    with pytest.raises(KeyMissing if is_permitted else RightMissing, match="of the namespace 'others'") as refused:
        ValueResolver(catalog, SecretStore(own.secrets, {}), RunSecrets()).resolve(found.spec.connection.api_key, found)
    assert "keys" not in str(refused.value)


def test_a_secret_is_not_read_without_a_right_even_if_the_run_was_pinned() -> None:
    own = loaded(model("http://127.0.0.1:1", apiKey=OF_KEY), secret(), role("clerk", rule("models")), *CLERK)
    clerks = RunCatalog.of_files(own.catalog).with_account("default/clerk")
    pinned = RunCatalog.model_validate_json(json.dumps(clerks.model_dump(mode="json")))
    values = ValueResolver(pinned, SecretStore(own.secrets, {}), RunSecrets())
    found = pinned.by_id("Model/default/gpt")
    assert isinstance(found, Model)
    assert found.spec.connection
    with pytest.raises(RightMissing, match="may not get secrets 'default/keys'"):
        values.resolve(found.spec.connection.api_key, found)


async def test_the_tools_of_an_agent_in_a_nested_team_need_rights_too(
    env: Environment, tool_server: ToolServer
) -> None:
    tool = manifest("Tool", "look", {"type": "http", "http": {"url": tool_server.url}})
    inner = manifest("Team", "inner", {"strategy": "sequential", "members": [{"name": "a"}]})
    outer = manifest("Team", "outer", {"strategy": "sequential", "members": [{"name": "inner", "type": "team"}]})
    own = [inner, outer, agent("a", "look"), tool, *CLERK]
    given = {"spec": {"input": "Why?", "team": {"name": "outer"}, "serviceAccount": "clerk"}}
    text = await refused(env, given, *own, role("clerk", rule("agents", "teams")))
    assert "may not use tools 'default/look'" in text
    async with working(env, *own, role("clerk", rule("agents", "teams", "tools"))) as here:
        here.script(line("a", call("look"), "Here."))
        assert (await here.status(await here.start("query", given))).message == "Here."
    assert len(tool_server.seen) == 1
