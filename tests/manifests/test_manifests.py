"""Manifests: what is read, what is refused, and the error messages."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from baton.activities.registry import SECRETS_OF
from baton.resources.agent import Agent
from baton.resources.base import parse_duration
from baton.resources.catalog import Catalog
from baton.resources.documents import read_documents
from baton.resources.loader import load_files
from baton.resources.problems import ManifestError
from baton.resources.query import Query
from baton.resources.team import Team
from baton.resources.validation import Registered
from tests.harness.environment import KEY, Json, agent, manifest, team
from tests.harness.manifests import Writer, model, query
from tests.harness.processes import ROOT

OTHER_CONFIG = model()
OTHER_CONFIG["spec"]["config"]["bedrock"] = {"secretAccessKey": {"value": KEY}}
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"token": KEY}}
TOKEN = {"valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}}


def test_the_brainstorming_team_of_arks_documentation_is_read_as_printed() -> None:
    loaded = load_files([ROOT / "samples" / "brainstorming.yaml"])
    names = [manifest.id for manifest in loaded.catalog.manifests]
    assert names == [
        "Agent/default/brainstormer-agent",
        "Agent/default/coordinator-agent",
        "Agent/default/critic-agent",
        "Query/default/brainstorming-session",
        "Team/default/brainstorming-team",
    ]
    coordinator = loaded.catalog.get("Agent", "default", "coordinator-agent")
    assert isinstance(coordinator, Agent)
    assert coordinator.can_terminate
    assert not loaded.unresolved()


def test_a_missing_target_is_named_once_and_a_missing_member_is_not_the_team_itself(write: Writer) -> None:
    asks = manifest(
        "Query", "q", {"input": "?", "targets": [{"type": "team", "name": "crew"}, {"type": "agent", "name": "x"}]}
    )
    loaded = write.load(team("crew", "crews", maxTurns=1), asks)
    query = loaded.catalog.get("Query", "default", "q")
    assert query
    _, missing = loaded.catalog.needed_by(query)
    assert [(each.owner.id, each.reference.name) for each in missing] == [
        ("Query/default/q", "x"),
        ("Team/default/crew", "crews"),
    ]
    assert not any("did you mean 'crew'" in str(each) for each in loaded.unresolved())


def test_a_worker_with_one_role_misses_the_secrets_of_this_role_alone(write: Writer) -> None:
    header = [{"name": "authorization", "value": {"valueFrom": {"secretKeyRef": {"name": "tools-key", "key": "k"}}}}]
    http = {"type": "http", "description": "Looks up.", "http": {"url": "https://a.example", "headers": header}}
    config = {"openai": {"apiKey": {"valueFrom": {"secretKeyRef": {"name": "models-key", "key": "k"}}}}}
    of_model = {"provider": "openai", "model": {"value": "m"}, "config": config}
    loaded = write.load(manifest("Tool", "look", http), manifest("Model", "m", of_model))
    missed = {role: [each.resource for each in loaded.unresolved(secrets_of=SECRETS_OF[role])] for role in SECRETS_OF}
    assert missed == {"workflows": [], "models": ["Model/default/m"], "tools": ["Tool/default/look"]}
    assert len(loaded.unresolved()) == 2


def test_a_reference_without_a_namespace_looks_in_the_namespace_of_its_owner(write: Writer) -> None:
    inner = {**agent("one"), "metadata": {"name": "one", "namespace": "inner"}}
    crew = {**team("crew", "one", maxTurns=1), "metadata": {"name": "crew", "namespace": "inner"}}
    other = team("other", "one", maxTurns=1)
    reaching = team("reaching", maxTurns=1)
    reaching["spec"]["members"] = [{"name": "one", "namespace": "inner", "type": "agent"}]
    loaded = write.load(inner, crew, other, reaching)
    assert [str(each).partition(": ")[2] for each in loaded.unresolved()] == [
        "Team/default/other: spec.members[0].name: Agent or Team default/one is not in the files; "
        "there is Agent inner/one"
    ]


def test_the_same_resource_twice_is_refused_with_both_places(write: Writer) -> None:
    write.file(agent("one"), name="a.yaml")
    write.file(agent("two"), agent("one"), name="b.yaml")
    with pytest.raises(ManifestError) as error:
        load_files([write.folder])
    assert str(error.value) == (
        f"{write.folder}/b.yaml:11: Agent/default/one: metadata.name: is defined twice: "
        f"first at {write.folder}/a.yaml:1"
    )


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        (query(), "spec.targets: is missing: the query has no targets; write for example [{type: team, name: NAME}]"),
        (query(targets=[], team={"name": "t"}, inptu=1), "spec.inptu: is not a field of Query; did you mean 'input'?"),
        (
            query(team={"name": "t"}, targets=[{"type": "agent", "name": "a"}]),
            "spec.team: can't be combined with targets",
        ),
        (query(team="t"), "spec.team: is text, must be a mapping"),
        (query(team={"name": "t"}, timeout="5 minutes"), "spec.timeout: is not a duration: write '300s', '5m' or"),
        (query(team={"name": "t"}, timeout="0s"), "spec.timeout: is not a usable duration"),
        (query(team={"name": "t"}, timeout=300), "spec.timeout: is a number, must be text"),
        (query(targets=[{"type": "robot", "name": "a"}]), "spec.targets[0].type: 'robot' is unknown"),
        (query(targets=[{"type": "agent"}]), "spec.targets[0].name: is missing; it must be the target's name"),
        (query(team={"name": "No Name"}), "spec.team.name: is not a name"),
        (team("t", maxTurns=1), "spec.members: is empty; it must be a roster of at least 1 entry {name, type}"),
        (team("t", "a", maxTurns=0), "spec.maxTurns: is 0, must be 1 or more"),
        (team("t", "a", maxTurns="3"), "spec.maxTurns: is text, must be a whole number"),
        (team("t", "a", maxTurns=1.5), "spec.maxTurns: "),
        (team("t", "a", maxTurns=True), "spec.maxTurns: is true or false, must be a whole number"),
        (team("t", "a", strategy="round-robbin"), "spec.strategy: 'round-robbin' is unknown; did you mean"),
        (team("t", "a", strategy="graph"), "spec.graph: is missing: the strategy 'graph' needs graph.edges"),
        (agent("a", prompt=""), "spec.prompt: is empty"),
        (agent("a", model={"name": "x"}, modelRef={"name": "y"}), "spec.modelRef: can't be combined with model"),
        (agent("a", "noop", "noop"), "spec.tools: 'noop' appears twice"),
        (agent("a", tools=[{"type": "built-in", "name": "eval"}]), "spec.tools[0].name: 'eval' is not a built-in tool"),
        ({**agent("a"), "kind": "Agnet"}, "kind: 'Agnet' is not a kind; did you mean 'Agent'?"),
        ({**agent("a"), "apiVersion": "ark.mckinsey.com/v2"}, "apiVersion: 'ark.mckinsey.com/v2' is unknown"),
        ({**agent("a"), "metadata": {}}, "metadata.name: is missing; it must be the resource's name"),
        ({**agent("a"), "specs": {}}, "specs: is not a field of Agent; did you mean 'spec'?"),
        ({**model(), "spec": {"type": "openai", "model": {"value": "x"}}}, "spec.config.openai: is missing"),
        (model(apiKey={}), "spec.config.openai.apiKey: needs either value or valueFrom"),
        (model(baseUrl="localhost:11434/v1"), "spec.config.openai.baseUrl: is not an address: it must begin with http"),
        (model(baseUrl="https://me:pass@host/v1"), "spec.config.openai.baseUrl: contains a user or a password"),
        (OTHER_CONFIG, "spec.config.bedrock: can't be used for a model of type 'openai'"),
        ({**SECRET, "data": {"token": "no base64!"}}, "data.token: is not base64 of UTF-8 text"),
        ("just text", "is not a manifest: it must be a mapping"),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_an_error_names_its_place_and_what_is_expected(write: Writer, manifest: object, says: str) -> None:
    said = write.refusal(manifest)
    assert any(says in each for each in said), said
    assert all(re.match(r"m\.yaml:\d+: ", each) for each in said), said


def test_all_errors_are_reported_at_once(write: Writer) -> None:
    said = write.refusal(agent("a", prompt=5), team("t", "a", strategy="none"), query(team={"nmae": "t"}))
    assert len(said) == 4


@pytest.mark.parametrize("names", [["t"], ["u", "t"], ["u", "v", "t"]], ids=["directly", "by-another", "by-two-others"])
def test_a_team_that_contains_itself_is_refused(write: Writer, names: list[str]) -> None:
    chain = ["t", *names]
    teams = [team(name, inner, strategy="sequential") for name, inner in pairwise(chain)]
    said = write.refusal(*teams)
    assert f"the team contains itself ({' → '.join(chain)})" in said[0]


def test_a_nested_team_is_no_cycle(write: Writer) -> None:
    teams = team("outer", "inner", "inner", strategy="sequential"), team("inner", "a", strategy="sequential")
    assert len(write.load(agent("a"), *teams).catalog.manifests) == 3


@pytest.mark.parametrize(
    ("members", "bounded"),
    [
        ([agent("a")], False),
        ([agent("a", "terminate")], True),
        ([agent("a", "terminate_team")], True),
        ([team("a", "b", maxTurns=1), agent("b", "terminate")], False),
        ([], True),
    ],
    ids=["nobody", "terminate", "terminate_team", "a-nested-one", "unknown"],
)
def test_a_round_robin_without_max_turns_needs_a_member_that_can_terminate(
    write: Writer, members: list[Json], bounded: bool
) -> None:
    if bounded:
        write.load(team("t", "a"), *members)
    else:
        assert (
            "spec.maxTurns: is missing, and no member agent can terminate" in write.refusal(team("t", "a"), *members)[0]
        )


def test_a_member_without_a_type_is_the_agent_of_that_name_before_the_team(write: Writer) -> None:
    catalog = write.load(team("t", "x", maxTurns=1), agent("x"), team("x", "y", maxTurns=1), agent("y")).catalog
    outer = catalog.get("Team", "default", "t")
    assert isinstance(outer, Team)
    assert isinstance(catalog.find(next(iter(outer.references))), Agent)


def test_the_forms_of_arks_documentation_are_read(write: Writer) -> None:
    spec = {"team": {"name": "t"}, "memory": "talks", "serviceAccount": "clerk", "sessionId": "s", "ttl": "1h"}
    catalog = write.load(query(**spec), agent("a", "terminate_team", "calculator"), team("t", "a")).catalog
    asked = catalog.get("Query", "default", "q")
    assert isinstance(asked, Query)
    assert [(target.type, target.name) for _, target in asked.spec.written_targets()] == [("team", "t")]
    assert asked.spec.memory
    assert asked.spec.service_account
    assert (asked.spec.memory.name, asked.spec.service_account.name) == ("talks", "clerk")
    held = catalog.get("Agent", "default", "a")
    assert isinstance(held, Agent)
    assert all(tool.built_in for tool in held.spec.tools)


def test_other_kubernetes_resources_are_ignored(write: Writer) -> None:
    other = {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "i"}}
    later = {"apiVersion": "ark.mckinsey.com/v1alpha1", "kind": "A2ATask", "metadata": {"name": "e"}, "spec": {}}
    loaded = write.load(other, agent("a"), later, {"no": "kind"})
    assert len(loaded.catalog.manifests) == 1
    assert [each.rpartition(": ")[2] for each in loaded.ignored] == [
        "Ingress",
        "A2ATask",
        "a document without a kind",
    ]


def test_folders_lists_and_documents_are_read_in_the_order_of_their_files(write: Writer) -> None:
    (write.folder / "deep").mkdir()
    write.file({"apiVersion": "v1", "kind": "List", "items": [agent("b"), agent("a")]}, name="deep/list.yml")
    write.file(agent("c"), name="c.json")
    write.file(agent("d"), name="notes.txt")
    assert [each.name for each in load_files([write.folder], recursive=True).catalog.manifests] == ["a", "b", "c"]
    assert [each.name for each in load_files([write.folder]).catalog.manifests] == ["c"], "as kubectl without -R"


def test_the_output_of_kubectl_get_is_read(write: Writer) -> None:
    printed = query(team={"name": "t"})
    printed["metadata"] |= {"uid": "x", "resourceVersion": "5", "creationTimestamp": "2025-09-03T10:00:00Z"}
    loaded = write.load({**printed, "status": {"phase": "done"}})
    assert isinstance(loaded.catalog.manifests[0], Query)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "m.yaml:2: is not YAML"),
        ("a: 1\na: 2", "m.yaml:2: is not YAML: the key 'a' appears twice"),
        ("a: !!python/object:os.system x", "m.yaml:1: is not YAML"),
        ("&a [*a]", "too large or too deep, or an alias that contains itself"),
        ("a: &a {x: &b {y: *a}}", "too large or too deep, or an alias that contains itself"),
        ("a: &a {<<: *a}", "too large or too deep, or an alias that contains itself"),
        (
            "a: &a [x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"{n}: &{n} [{', '.join([f'*{p}'] * 9)}]\n" for p, n in zip("abcdefg", "bcdefgh", strict=True)),
            "too large or too deep",
        ),
        ("a: !!int abc", "does not fit its tag"),
        ("a: !!bool maybe", "does not fit its tag"),
        ("a: !!timestamp x", "does not fit its tag"),
        (f"a: {'1' * 5_000}", "does not fit its tag"),
        ("- " * 50_000, "is not YAML: nested deeper than 64"),
        ("[" * 5_000, "m.yaml"),
        ("a:\n- b: \u0007", "is not YAML"),
    ],
    ids=[
        "broken",
        "twice",
        "code",
        "recursive",
        "deep-recursive",
        "recursive-merge",
        "bomb",
        "int",
        "bool",
        "timestamp",
        "digits",
        "blocks",
        "deep",
        "control",
    ],
)
def test_a_malicious_file_is_only_an_error(write: Writer, text: str, says: str) -> None:
    assert says in write.refusal(text=text)[0]


def test_a_file_that_is_not_text_is_an_error(write: Writer, tmp_path: Path) -> None:
    for name, data in {
        "binary": b"\x00\x01\xff\xfe",
        "latin": "a: é".encode("latin-1"),
        "big": b"x" * 5_000_000,
    }.items():
        file = tmp_path / f"{name}.yaml"
        file.write_bytes(data)
        with pytest.raises(ManifestError):
            load_files([file])


def test_text_that_looks_like_something_else_stays_text(write: Writer) -> None:
    text = "yes: no\nport: 0o17\nday: 2025-09-03\ntime: 12:30\nname: 010\n"
    document = read_documents(write.file(text=text))[0]
    assert document.data == {"yes": "no", "port": "0o17", "day": "2025-09-03", "time": "12:30", "name": "010"}


def test_merge_keys_and_aliases_are_read(write: Writer) -> None:
    merged = read_documents(write.file(text="c: &c {a: 1, b: 2}\nd: {<<: *c, b: 3}\n"))[0]
    assert merged.data == {"c": {"a": 1, "b": 2}, "d": {"a": 1, "b": 3}}
    assert merged.line(("d", "b")) == 2


def test_a_literal_key_in_a_manifest_is_never_in_the_catalog(write: Writer) -> None:
    loaded = write.load(model(apiKey={"value": KEY}))
    assert KEY not in loaded.catalog.canonical
    assert KEY not in repr(loaded)
    secret = loaded.secrets.get("default", "inline.model.m")
    assert secret
    assert secret.value("spec.config.openai.apiKey") == KEY


def test_a_secret_that_is_not_in_the_files_is_reported_as_missing(write: Writer) -> None:
    loaded = write.load(
        query(targets=[{"type": "agent", "name": "a"}]), agent("a", modelRef={"name": "m"}), model(apiKey=TOKEN)
    )
    missed = "spec.config.openai.apiKey.valueFrom.secretKeyRef.name: Secret default/s is not in the files"
    assert missed in str(loaded.unresolved()[0])
    start = loaded.catalog.get("Query", "default", "q")
    assert start
    with pytest.raises(ManifestError, match="Secret default/s is not in the files"):
        loaded.needed_by(start)
    assert len(loaded.needed_by(start, elsewhere=True).manifests) == 3


@pytest.mark.full
def test_many_teams_that_contain_each_other_are_checked_quickly(write: Writer) -> None:
    layers = [
        team(f"t{layer}-{side}", *(f"t{layer + 1}-{other}" for other in "ab"), strategy="sequential")
        for layer in range(30)
        for side in "ab"
    ]
    chain = [team(f"c{number}", f"c{number + 1}", strategy="sequential") for number in range(900)]
    circle = team("c900", "c0", strategy="sequential")
    write.load(*layers)
    assert "the team contains itself (c0 → c1 → c2" in write.refusal(*chain, circle)[0]


@pytest.mark.full
def test_a_long_list_is_read_quickly(write: Writer) -> None:
    items = [agent(f"a{number}") for number in range(5_000)]
    text = yaml.dump({"apiVersion": "v1", "kind": "List", "items": items}, Dumper=yaml.CSafeDumper)
    assert len(write.load(text=text).catalog.manifests) == 5_000


def test_a_secret_is_never_in_the_catalog_and_a_missing_key_is_reported(write: Writer) -> None:
    loaded = write.load(model(apiKey=TOKEN), SECRET)
    assert KEY not in loaded.catalog.canonical + repr(loaded)
    wrong = {"valueFrom": {"secretKeyRef": {"name": "s", "key": "tokne"}}}
    said = write.refusal(model(apiKey=wrong), SECRET)
    assert said[0].endswith(
        "spec.config.openai.apiKey.valueFrom.secretKeyRef.key: Secret 's' has no key 'tokne'; its keys: token"
    )


def test_an_unsupported_field_is_refused_when_it_is_run(write: Writer) -> None:
    loaded = write.load(
        query(team={"name": "t"}, parameters=[{"name": "a", "value": "b"}]),
        manifest("ArkConfig", "default", {"defaultMemory": {"name": "m"}}),
        team("t", "a", strategy="sequential"),
        agent("a", tools=[{"name": "search", "type": "custom"}]),
    )
    start = loaded.catalog.get("Query", "default", "q")
    assert start
    with pytest.raises(ManifestError) as error:
        loaded.needed_by(start)
    fields = {problem.field for problem in error.value.problems}
    assert fields == {
        "spec.defaultMemory",
        "spec.tools[0].name",
    }
    assert all("not supported yet" in p.text or "is not in the files" in p.text for p in error.value.problems)


def test_a_catalogs_sha_does_not_depend_on_the_order_of_the_files(write: Writer) -> None:
    one = write.load(agent("a"), agent("b")).catalog
    assert one.sha == write.load(agent("b"), agent("a")).catalog.sha
    assert one.sha != write.load(agent("b"), agent("a", prompt="Other.")).catalog.sha
    assert Catalog.model_validate_json(one.canonical).sha == one.sha


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("300s", 300), ("1h30m", 5400), ("1.5h", 5400), ("100ms", 0.1), ("2m.5s", 120.5), ("1000µs", 1e-3)],
)
def test_durations_are_read_in_the_notation_of_go(text: str, seconds: float) -> None:
    assert parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "5 m", "m", "-5m", "1d", "1ns", "5mm", "1h 30m", "99999999h", "99999999999h"]
)
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


def test_a_member_that_becomes_a_default_member_by_its_name_alone_is_reported(write: Writer) -> None:
    members = [{"name": "writr"}, {"name": "one"}, {"name": "editor", "role": "an editor"}]
    panel = manifest("Team", "t", {"strategy": "round-robin", "members": members, "maxRounds": 1})
    loaded = write.load(panel, agent("one"))
    (note,) = loaded.default_members()
    assert str(note).endswith("spec.members[0].name: no Agent or Team 'writr' is known: it becomes a default member")
    assert loaded.unresolved() == []


def test_a_role_that_an_agent_with_its_own_prompt_is_not_told_is_reported(write: Writer) -> None:
    members = [{"name": "one", "role": "a critic"}, {"name": "one", "as": "two", "role": "r", "type": "default"}]
    loaded = write.load(manifest("Team", "t", {"strategy": "round-robin", "members": members}), agent("one"))
    (note,) = loaded.unused_roles()
    assert str(note).endswith("spec.members[0].role: is not passed to Agent/default/one, which has its own prompt")


def test_a_function_or_an_activity_that_a_worker_has_not_registered_is_named_with_its_field(write: Writer) -> None:
    members = [{"name": "a"}, {"name": "count-words", "type": "activity"}]
    spec = {"strategy": "round-robin", "maxRounds": 3, "members": members, "terminateWhen": {"function": "enough"}}
    panel = manifest("Team", "panel", spec)
    tools = [
        manifest("Tool", "look-up", {"type": "function", "function": {"name": "lookup"}}),
        manifest("Tool", "pay", {"type": "activity", "activity": {"type": "pay_claim"}}),
        manifest("Tool", "bill", {"type": "activity", "activity": {"type": "bill", "taskQueue": "elsewhere"}}),
    ]
    loaded = write.load(agent("a"), panel, *tools)
    queue = "claims"
    missing = loaded.unregistered(
        Registered(task_queue=queue, functions={"look-up"}, activities={"pay_claims"}, workflows={})
    )
    assert [str(each).partition(": ")[2] for each in missing] == [
        "Team/default/panel: spec.terminateWhen.function: the worker has no function 'enough'; known: look-up",
        "Team/default/panel: spec.members[1].name: the worker has no function 'count-words'; known: look-up",
        "Tool/default/look-up: spec.function.name: the worker has no function 'lookup'; did you mean 'look-up'?",
        "Tool/default/pay: spec.activity.type: the worker of the task queue claims has no activity 'pay_claim'; "
        "did you mean 'pay_claims'?",
    ]
    assert loaded.unregistered(Registered(task_queue=queue, functions=None, activities=None, workflows=None)) == []
