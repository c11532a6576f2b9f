"""The samples and the commands of the documentation: all of them run."""

import base64
import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml
from a2a.types import Part

from baton.resources.agent import Agent
from baton.resources.loader import load_files
from baton.resources.rights import AccountName, Use, may
from baton.resources.team import Team
from baton.testing import Reply, Script, ScriptedModel, ScriptedToolCall
from tests.harness.agent_server import AgentServer, Turn
from tests.harness.anthropic_server import AnthropicServer
from tests.harness.bedrock_server import BedrockServer
from tests.harness.environment import KEY
from tests.harness.mcp_process import McpServerProcess, run_program
from tests.harness.processes import PATIENCE, ROOT, baton, process_env
from tests.harness.tool_server import Answer, ToolServer
from tests.harness.user_machine import UserMachine

SAMPLES = sorted((ROOT / "samples").glob("*.yaml"))
OTHER_PROVIDERS = ("anthropic", "bedrock")
"""The samples whose models the scripted model can't stand in for: other servers do."""

DOCUMENTED = """
apiVersion: ark.mckinsey.com/v1alpha1
kind: Team
metadata:
  name: brainstorming-team
spec:
  strategy: round-robin
  maxTurns: 3
  members:
    - name: brainstormer-agent
    - name: critic-agent
    - name: coordinator-agent
  description: "Round-robin brainstorming team with 3-turn limit"
"""


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda file: file.stem)
def test_a_sample_is_valid_and_complete_and_says_what_it_shows(sample: Path) -> None:
    assert sample.read_text().startswith("# ")
    loaded = load_files([sample])
    assert not loaded.unresolved()
    for manifest in loaded.catalog.manifests:
        loaded.needed_by(manifest)
    if sample.stem not in OTHER_PROVIDERS:
        Script.read(ROOT / "samples" / "scripts" / sample.name)


def test_the_brainstorming_sample_has_the_team_of_arks_documentation() -> None:
    documents = [*yaml.safe_load_all((ROOT / "samples" / "brainstorming.yaml").read_text())]
    assert yaml.safe_load(DOCUMENTED) in documents
    agents = {each["metadata"]["name"]: each["spec"] for each in documents if each["kind"] == "Agent"}
    assert all(spec["model"] == {"name": "gpt-4", "type": "openai"} for spec in agents.values())
    terminate = {"name": "terminate_team", "description": "Call this when the team has reached a good conclusion"}
    assert agents["coordinator-agent"]["tools"] == [terminate]
    query = next(each["spec"] for each in documents if each["kind"] == "Query")
    assert query == {
        "team": {"name": "brainstorming-team"},
        "input": "How can we improve our product's user experience?",
    }


RUNS: list[tuple[str, list[str], str, list[str]]] = [
    (
        "delegation",
        [],
        "We offer 40 lamps to the Harbour Hotel for 500 EUR, delivered next week.",
        ["sales-lead", "ask-price-expert", "ask-review-team", "sales-lead"],
    ),
    (
        "banking",
        [],
        "With that balance we offer 5 % over 36 months, up to 20,000.",
        ["inquiry-router", "account-helper", "loan-advisor"],
    ),
    (
        "banking",
        ["team/service-by-need", "What is my balance?"],
        "Your balance is 4,210.55, with nothing pending.",
        ["account-helper"],
    ),
    (
        "banking",
        ["team/loan-approval", "May I borrow 20,000?"],
        "Approved: 20,000 at 5 % over 36 months.",
        ["inquiry-router", "account-helper", "risk-officer", "loan-advisor", "bank-manager", "terminate"],
    ),
    (
        "banking",
        ["team/service-round", "And now?"],
        "Approved: 20,000 at 5 % over 36 months.",
        ["account-helper", "loan-advisor", "bank-manager", "terminate"],
    ),
    (
        "sales-analysis",
        [],
        "Q3 reached 95 % of its plan. The North is ahead. Two more people in the South would close the gap.",
        ["researcher", "analyst", "calculator", "analyst", "presenter"],
    ),
    (
        "code-review",
        [],
        "It is a mean: call it so, and say what an empty list gives.",
        ["correctness", "naming", "safety", "editor"],
    ),
    (
        "newsroom",
        [],
        "The article stands.",
        ["reporter", "fact-checker", "reporter", "shopkeeper", "resident", "writer", "newsroom"],
    ),
    (
        "support",
        [],
        "You get 49 EUR back within three days.",
        ["triage", "transfer_to_billing", "billing", "transfer_to_refunds", "refunds"],
    ),
    (
        "expenses",
        [],
        "You get 380 EUR back, since Oslo's limit is 190 EUR per night (rule 1). The other 40 EUR are not paid.",
        ["bookkeeper", "load_skill", "bookkeeper", "load_skill", "bookkeeper"],
    ),
    (
        "editorial-review",
        [],
        "The Moon raises two bulges of water, one towards it and one away from it.\nAs the Earth turns, our harbour "
        "passes both, every 12 hours and 25 minutes: high tide.",
        [*["writer", "fact-checker", "copy-editor"] * 3, "synthesizer"],
    ),
    (
        "trade-risk",
        [],
        '{"decision": "buy-less", "shares": 900, "reasons": ["A fall by an eighth, as last time, costs 4,600 with 900 '
        'shares.", "Bookings are up by a tenth."]}',
        [*["aggressive", "conservative", "neutral", "referee"] * 2, "synthesizer"],
    ),
    (
        "debate",
        [],
        "Keep the one program. Should search ever stop the checkout, give it a service of its own, and no more.",
        ["moderator", "splitter", "keeper", "moderator", "keeper", "splitter", "judge", "synthesizer"],
    ),
    (
        "budget",
        [],
        "Nobody has answered that yet.",
        ["scout", "critic", "scout", "critic", "critic"],
    ),
    (
        "rights",
        [],
        "No. Twelve hours at 95 euros are 1,140 euros.",
        ["auditor", "ask-archivist", "auditor", "calculator", "auditor"],
    ),
]


@pytest.mark.parametrize(
    ("name", "target", "answer", "speakers"),
    RUNS,
    ids=[f"{name} {' '.join(target[:1])}" for name, target, _, _ in RUNS],
)
@pytest.mark.shared_server
def test_a_sample_runs_and_says_what_its_script_says(
    machine: UserMachine, name: str, target: list[str], answer: str, speakers: list[str]
) -> None:
    machine.model._answer = Script.read(ROOT / "samples" / "scripts" / f"{name}.yaml").answer
    bank = ["-n", "demo-bank"] if name == "banking" else []
    done = machine.run("run", *target, "-f", ROOT / "samples" / f"{name}.yaml", "-o", "json", *bank)
    (response,) = json.loads(done.stdout)["status"]["responses"]
    assert response["message"] == answer
    assert [each["name"] for each in response["messages"]] == speakers


@pytest.mark.shared_server
def test_the_chart_sample_sends_its_image_to_the_model(machine: UserMachine) -> None:
    machine.model._answer = Script.read(ROOT / "samples" / "scripts" / "chart.yaml").answer
    done = machine.run("run", "-f", ROOT / "samples" / "chart.yaml")
    assert done.stdout == "The sales rise from quarter to quarter.\n", done.stderr
    (image,) = machine.model.requests[0].body.attached
    assert base64.b64decode(image["image_url"]["url"].partition(",")[2]).startswith(b"\x89PNG")


def test_workers_with_all_samples_let_everybody_use_them() -> None:
    """The compose file gives them to its workers. Rights in a namespace close it for all who have none."""
    catalog = load_files([ROOT / "samples"]).catalog
    anybody = AccountName("default", "default")
    targets = [manifest for manifest in catalog.manifests if isinstance(manifest, Team | Agent)]
    closed = [target.id for target in targets if not may(catalog, anybody, Use.of(target))]
    assert {target.split("/")[1] for target in closed} == {"audit"}


@pytest.mark.shared_server
def test_the_rights_sample_is_refused_without_one_of_its_rights(machine: UserMachine) -> None:
    text = (ROOT / "samples" / "rights.yaml").read_text().replace("[auditor, archivist, ask-archivist]", "[auditor]")
    (machine.folder / "rights.yaml").write_text(text)
    done = machine.run("run", "-f", machine.folder / "rights.yaml")
    assert done.returncode != 0
    assert "the ServiceAccount audit/auditor may not use agents 'audit/archivist'" in done.stderr
    assert machine.model.requests == []


@pytest.mark.shared_server
def test_the_overrides_sample_sends_the_headers_of_the_query_and_the_agent(machine: UserMachine) -> None:
    seen: list[tuple[str | None, str | None]] = []
    server = ScriptedModel(Script.read(ROOT / "samples" / "scripts" / "overrides.yaml").answer)
    server.on_headers = lambda headers: seen.append((headers.get("x-customer"), headers.get("x-desk")))
    with server.serve() as url:
        text = (ROOT / "samples" / "overrides.yaml").read_text().replace("https://models.example.com/v1", url)
        (machine.folder / "overrides.yaml").write_text(text)
        done = machine.run("run", "-f", "overrides.yaml", "-p", "customer=7312")
    assert done.returncode == 0, done.stderr
    assert seen == [("7312", "claims-north")]


@pytest.mark.full
def test_the_circuit_breaker_sample_leaves_a_failing_service_alone(
    machine: UserMachine, tool_server: ToolServer
) -> None:
    machine.model._answer = Script.read(ROOT / "samples" / "scripts" / "circuit-breaker.yaml").answer
    tool_server.answers(Answer(status=500))
    text = (
        (ROOT / "samples" / "circuit-breaker.yaml").read_text().replace("https://weather.example.com", tool_server.url)
    )
    (machine.folder / "circuit-breaker.yaml").write_text(text)
    done = machine.run("run", "-f", machine.folder / "circuit-breaker.yaml", "-o", "json")
    (response,) = json.loads(done.stdout)["status"]["responses"]
    assert response["message"] == "I can't see the weather. Take Faro, where it rains least."
    assert len(tool_server.seen) == 2


@pytest.mark.slow
@pytest.mark.shared_server
def test_the_sample_without_tools_goes_on_and_says_so(machine: UserMachine) -> None:
    machine.model._answer = Script.read(ROOT / "samples" / "scripts" / "without-tools.yaml").answer
    done = machine.run("run", "-f", ROOT / "samples" / "without-tools.yaml", "-o", "json")
    status = json.loads(done.stdout)["status"]
    assert status["message"] == "About 29 and a half days; I could not look it up."
    assert status["notices"][0].startswith("astronomer: without the tools of MCPServer/default/almanac")


@pytest.mark.shared_server
def test_the_weather_sample_finds_a_place_asks_for_its_weather_and_compares(
    machine: UserMachine, tool_server: ToolServer
) -> None:
    place = {"results": [{"name": "Madrid", "latitude": 40.4165, "longitude": -3.70256}]}
    tool_server.answers(Answer(json.dumps(place)), Answer('{"current": {"temperature_2m": 21.5}}'))
    with ScriptedModel(Script.read(ROOT / "samples" / "scripts" / "weather.yaml").answer).serve() as url:
        text = (ROOT / "samples" / "weather.yaml").read_text().replace("https://api.openai.com/v1", url)
        for host in ("https://geocoding-api.open-meteo.com", "https://api.open-meteo.com"):
            text = text.replace(host, tool_server.url)
        (machine.folder / "weather.yaml").write_text(text)
        done = machine.run("run", "-f", "weather.yaml", "-o", "json")
    assert done.returncode == 0, done.stderr
    answers = [each["message"] for each in json.loads(done.stdout)["status"]["responses"]]
    assert answers[0].startswith("It is mild in Madrid")
    assert answers[1].startswith("I can't see the weather")
    assert [seen.path for seen in tool_server.seen] == [
        "/v1/search?name=Madrid&count=1",
        "/v1/forecast?current=temperature_2m,wind_speed_10m&latitude=40.4165&longitude=-3.70256",
    ]


@pytest.mark.shared_server
def test_the_openapi_sample_uses_an_operation_of_its_document(machine: UserMachine, tool_server: ToolServer) -> None:
    machine.model._answer = Script.read(ROOT / "samples" / "scripts" / "openapi.yaml").answer
    tool_server.answers(Answer('{"daily": {"rain_sum": [0, 0]}}'))
    text = (ROOT / "samples" / "openapi.yaml").read_text().replace("https://api.open-meteo.com", tool_server.url)
    (machine.folder / "openapi.yaml").write_text(text)
    done = machine.run("run", "-f", machine.folder / "openapi.yaml", "-o", "json")
    (response,) = json.loads(done.stdout)["status"]["responses"]
    assert response["message"] == "No rain is expected in Lisbon tomorrow."
    assert [seen.path for seen in tool_server.seen] == ["/v1/forecast?latitude=38.72&longitude=-9.14&daily=rain_sum"]


@pytest.mark.slow
def test_the_travel_sample_asks_an_agent_of_an_a2a_server_and_answers_what_that_asks(machine: UserMachine) -> None:
    async def book(turn: Turn) -> None:
        task = await turn.task()
        if turn.is_new:
            await task.requires_input(task.new_agent_message([Part(text="From which day on?")]))
        else:
            await task.complete(task.new_agent_message([Part(text=f"Booked. {turn.texts[-1]}")]))

    machine.model._answer = Script.read(ROOT / "samples" / "scripts" / "travel.yaml").answer
    agents = AgentServer()
    agents.behaviour = book
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "booking"},
        "stringData": {"authorization": "Bearer b00king"},
    }
    (machine.folder / "secret.yaml").write_text(yaml.safe_dump(secret))
    with agents.serving():
        text = (ROOT / "samples" / "travel.yaml").read_text().replace("http://localhost:9999", agents.url)
        (machine.folder / "travel.yaml").write_text(text)
        done = machine.run("run", "-f", machine.folder, "-o", "json")
    (response,) = json.loads(done.stdout)["status"]["responses"]
    assert [(each["name"], each["content"]) for each in response["messages"]] == [
        ("planner", "A hotel near the river, two nights."),
        ("booking", "From which day on?"),
        ("planner", "From Friday on."),
        ("booking", "Booked. From Friday on."),
    ]
    assert "turn 2 of 4 · Oracle" in done.stderr
    assert {seen.headers.get("authorization") for seen in agents.seen} == {"Bearer b00king"}
    assert "b00king" not in done.stdout + done.stderr


@pytest.mark.shared_server
def test_the_schedule_sample_starts_its_query_when_it_is_triggered(machine: UserMachine) -> None:
    machine.model._answer = Script.read(ROOT / "samples" / "scripts" / "schedule.yaml").answer
    applied = machine.run("schedules", "apply", "-f", ROOT / "samples" / "schedule.yaml")
    assert applied.stdout == "schedule/morning-news created\n"
    run = machine.run("schedules", "trigger", "morning-news").stdout.strip()
    assert re.fullmatch(r"morning-news-20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", run)
    assert machine.run("watch", run).returncode == 0
    status = json.loads(machine.run("status", run, "-o", "json").stdout)["status"]
    assert status["message"] == "Two ships are late. The crane at pier 4 works again."
    assert machine.run("schedules", "delete", "morning-news").returncode == 0


@pytest.mark.shared_server
def test_the_conversation_sample_goes_on_in_its_second_query(machine: UserMachine) -> None:
    machine.model._answer = Script.read(ROOT / "samples" / "scripts" / "conversation.yaml").answer
    for name in ("first", "second"):
        done = machine.run("run", f"query/{name}", "-f", ROOT / "samples" / "conversation.yaml")
        assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Fourteen hours")
    asked = [each["content"] for each in machine.model.requests[-1].body["messages"][1:]]
    assert asked[0] == "I want to see the sea in November. I don't fly."
    assert asked[2:] == ["And how long does it take?"]


@pytest.mark.full
@pytest.mark.shared_server
def test_the_assistant_sample_uses_a_tool_of_an_mcp_server(machine: UserMachine) -> None:
    machine.model._answer = Script.read(ROOT / "samples" / "scripts" / "assistant.yaml").answer
    with McpServerProcess("2026", machine.folder).running() as server:
        text = (ROOT / "samples" / "assistant.yaml").read_text().replace("http://localhost:3001/mcp", server.url)
        (machine.folder / "assistant.yaml").write_text(text)
        listed = machine.run("tools", "-f", machine.folder / "assistant.yaml", "assistant")
        done = machine.run("run", "-f", machine.folder / "assistant.yaml", "-o", "json")
    assert "  everything-echo(message: string)\n    Gives the message back." in listed.stdout
    (response,) = json.loads(done.stdout)["status"]["responses"]
    assert [each["content"] for each in response["messages"][1:]] == ["Hello!", "The server gives my greeting back."]


@pytest.mark.full
@pytest.mark.shared_server
def test_the_hotel_sample_asks_a_person_what_its_server_wants_to_know(machine: UserMachine) -> None:
    machine.model._answer = Script.read(ROOT / "samples" / "scripts" / "hotel.yaml").answer
    serve = partial(run_program, ROOT / "samples" / "hotel_server.py")
    with McpServerProcess("2026", machine.folder, serve=serve).running() as server:
        text = (ROOT / "samples" / "hotel.yaml").read_text().replace("http://localhost:3002/mcp", server.url)
        (machine.folder / "hotel.yaml").write_text(text)
        running = machine.start("run", "-f", machine.folder / "hotel.yaml", "-o", "json")
        machine.wait_for_calls(1)
        while "The blue room costs 90 euros" not in machine.run("inbox").stdout:
            assert running.poll() is None, running.communicate()
        wrong = machine.run("reply", "book-room", "sea")
        assert (wrong.returncode, "the reply is not JSON" in wrong.stderr) == (1, True)
        done = machine.run("reply", "book-room", "-", stdin='{"room": "sea"}')
        assert (done.returncode, done.stderr.strip()) == (0, "Reply sent.")
        out, err = running.communicate(timeout=PATIENCE)
    (response,) = json.loads(out)["status"]["responses"]
    assert response["messages"][1]["content"] == "Booked: the room 'sea' on Monday."
    assert "? question for travel-desk: baton reply book-room-" in err


@pytest.mark.full
@pytest.mark.shared_server
def test_the_budget_of_a_sample_waits_for_a_person_who_grants_more(machine: UserMachine) -> None:
    machine.model._answer = Script.read(ROOT / "samples" / "scripts" / "budget-approval.yaml").answer
    running = machine.start("run", "-f", ROOT / "samples" / "budget-approval.yaml", "-o", "json")
    machine.wait_for_calls(2)
    listed: list[dict[str, str]] = []
    while not listed:
        assert running.poll() is None, running.communicate()
        done = machine.run("approvals", "-o", "json")
        listed = json.loads(done.stdout) if done.returncode == 0 and done.stdout else []
    (asked,) = listed
    assert (asked["speaker"], asked["arguments"]) == ("Query/default/festival-plan", '{"modelCalls":2}')
    wrong = machine.run("approve", "festival-plan", asked["id"], "--arguments", '{"tokens": 5}')
    assert (wrong.returncode, "the granted amounts must include modelCalls" in wrong.stderr) == (1, True)
    more = ("--arguments", '{"modelCalls": 1}', "--as", "ann")
    assert machine.run("approve", "festival-plan", asked["id"], *more).returncode == 0
    out, err = running.communicate(timeout=PATIENCE)
    status = json.loads(out)["status"]
    assert status["message"] == "From noon, choirs on the quay; at nine, a band, also on the quay."
    assert (status["phase"], status["budget"]["limits"]["modelCalls"]) == ("Completed", 3)
    assert f"? the budget of Query/default/festival-plan needs approval: baton approvals {asked['root']}" in err
    assert '✓ the budget of Query/default/festival-plan extended by ann with {"modelCalls":1}' in err


def test_the_questions_of_the_page_stand_in_the_sample() -> None:
    page = (ROOT / "docs" / "people.md").read_text()
    (shown,) = re.findall(r"## A question from a server.*?```yaml\n(.*?)```", page, re.DOTALL)
    sample = [*yaml.safe_load_all((ROOT / "samples" / "hotel.yaml").read_text())]
    assert yaml.safe_load(shown)["questions"] == sample[-1]["spec"]["questions"]


@pytest.mark.shared_server
def test_the_underwriting_sample_asks_an_execution_engine(machine: UserMachine, tool_server: ToolServer) -> None:
    machine.model._answer = Script.read(ROOT / "samples" / "scripts" / "underwriting.yaml").answer
    premium = '{"premium": 1911, "reason": "wood"}'
    tool_server.answers(Answer(json.dumps({"messages": [{"role": "assistant", "content": premium}]})))
    text = (ROOT / "samples" / "underwriting.yaml").read_text().replace("http://localhost:8090", tool_server.url)
    (machine.folder / "underwriting.yaml").write_text(text)
    done = machine.run("run", "-f", machine.folder / "underwriting.yaml", "-o", "json")
    (response,) = json.loads(done.stdout)["status"]["responses"]
    assert response["message"] == premium
    asked = json.loads(tool_server.seen[0].body)
    assert asked["agent"]["prompt"] == "You are an actuary of Harbour Mutual. Price the risks."
    assert [each["content"] for each in asked["history"]] == ["Wood burns, and the sea may flood it."]
    assert "pricing" in done.stderr


@pytest.mark.slow
def test_the_anthropic_sample_calculates_and_answers_with_json(tmp_path: Path) -> None:
    claude, answer = AnthropicServer(), '{"price": 127.245, "why": "3 * 49.90 * 0.85"}'
    sums = [ScriptedToolCall(name="calculator", arguments={"expression": "3 * 49.90 * 0.85"})]
    claude.answers(Reply(calls=sums), Reply(text=answer))
    with claude.serving() as url:
        text = (ROOT / "samples" / "anthropic.yaml").read_text().replace("https://api.anthropic.com", url)
        (tmp_path / "sample.yaml").write_text(text)
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "anthropic"}, "stringData": {"token": KEY}}
        (tmp_path / "secret.yaml").write_text(yaml.safe_dump(secret))
        done = baton("run", "-f", "sample.yaml", "-f", "secret.yaml", "-o", "json", env=process_env(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"]["responses"][0]["message"] == answer
    assert "127.245" in str(claude.requests[1]["messages"][-1])
    assert (claude.requests[0]["max_tokens"], claude.headers[0]["authorization"]) == (2000, f"Bearer {KEY}")
    assert KEY not in done.stdout + done.stderr


@pytest.mark.full
def test_the_bedrock_sample_asks_two_models_with_the_workers_own_keys(tmp_path: Path) -> None:
    aws = BedrockServer()
    aws.answers(Reply(text="They may double it."), Reply(text="Sign only with a cap."))
    with aws.serving() as url:
        env = process_env(AWS_ENDPOINT_URL=url, AWS_ACCESS_KEY_ID="AKIAWORKER", AWS_SECRET_ACCESS_KEY=KEY)
        done = baton("run", "-f", ROOT / "samples" / "bedrock.yaml", "-o", "json", env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"]["responses"][0]["message"] == "Sign only with a cap."
    assert aws.models == ["us.anthropic.claude-3-5-haiku-20241022-v1:0", "amazon.nova-lite-v1:0"]
    assert [each["inferenceConfig"] for each in aws.requests] == [
        {"maxTokens": 1000, "temperature": 0.2},
        {"topP": 0.9},
    ]
    assert "# lawyer:" in str(aws.requests[1]["messages"])
    assert KEY not in done.stdout + done.stderr


@pytest.mark.full
def test_the_demo_shows_a_discussion_and_its_status_and_leaves_nothing_running(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "samples" / "demo.py"],
        env=process_env(BATON_HOME=str(tmp_path / ".baton"), PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "turn 6 of 9 · scripted:gpt-4" in done.stderr
    assert "(the answers below are scripted: no language model is called)" in done.stderr
    status = yaml.safe_load(done.stdout.partition("\nThe words above are scripted.")[0])["status"]
    assert (status["phase"], status["stopReason"]) == ("Completed", "terminated")
    assert "baton dev" in done.stdout
    assert "OPENAI_API_KEY=sk-..." in done.stdout
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in left


PROGRAMS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.full
@pytest.mark.shared_server
def test_the_program_of_the_readme_runs_by_itself(machine: UserMachine) -> None:
    program = machine.folder / "panel.py"
    program.write_text(PROGRAMS[0])
    machine.model._answer = Script.read(ROOT / "samples" / "scripts" / "editorial-review.yaml").answer
    done = subprocess.run(
        [sys.executable, program], env=machine.env, cwd=machine.folder, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout.startswith("The Moon raises two bulges of water"), done.stderr
    assert done.stderr == ""


def test_the_readme_shows_the_plain_client_as_it_is() -> None:
    shown = PROGRAMS[1]
    body = (ROOT / "starter" / "plain_client.py").read_text()
    assert all(line.strip() in body for line in shown.splitlines())
