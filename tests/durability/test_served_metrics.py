"""What a worker serves to Prometheus and sends to a collector, and the dashboard and the alerts that read it."""

import asyncio
import io
import json
import logging
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import pytest_asyncio
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client.openmetrics import parser as openmetrics
from temporalio.client import Client
from temporalio.runtime import Runtime, TelemetryConfig

from baton.contracts.settings import SettingsError
from baton.observability import metrics
from baton.observability.log import handler_of
from baton.observability.metrics import Metric
from baton.observability.metrics_export import MetricsExport
from baton.observability.runtime import exporting_metrics
from baton.starter.server.embedded import EmbeddedServer
from tests.harness.environment import KEY, Json
from tests.harness.processes import ROOT
from tests.harness.served_metrics import Served, served_metrics
from tests.test_docs import COMMANDS

DOCS = ROOT / "docs" / "metrics.md"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(
    client: Client, server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    async with served_metrics(client, server, tmp_path_factory.mktemp("served")) as served:
        yield served


def prometheus_name(metric: Metric) -> str:
    """The name by which Prometheus knows a metric, without the ending of a histogram's samples."""
    unit = {"": "", "s": "_seconds", "usd": "_usd", "bytes": "_bytes"}[metric.unit]
    return metric.name.replace(".", "_") + unit + ("_total" if metric.kind == "counter" else "")


@pytest.mark.slow
def test_both_formats_of_prometheus_are_read_by_its_own_parsers(served: Served) -> None:
    read = openmetrics.text_string_to_metric_families(served.openmetrics)  # type: ignore[no-untyped-call]
    known = {each.name for each in read}
    assert known >= {"baton_calls", "baton_journal_duration_seconds", "temporal_request", "process_cpu_seconds"}
    assert served.types[0].startswith("text/plain; version=0.0.4")
    assert served.types[1].startswith("application/openmetrics-text")


@pytest.mark.parametrize("metric", metrics.ALL, ids=lambda metric: metric.name)
def test_every_metric_is_served_with_its_help_and_its_labels(served: Served, metric: Metric) -> None:
    name = prometheus_name(metric)
    family = served.families[name.removesuffix("_total")]
    kinds = {"counter": "counter", "histogram": "histogram", "gauge": "gauge", "up_down": "gauge"}
    assert (family.type, family.documentation) == (kinds[metric.kind], metric.help)
    assert {label for each in family.samples for label in each.labels} - {"le"} == {*metric.labels}


def test_what_the_run_did_is_counted(served: Served) -> None:
    found = {(each.name, *each.labels.values()): each.value for f in served.families.values() for each in f.samples}
    calls = {("tool", "buy", "ok"): 1, ("tool", "calculator", "ok"): 1, ("model", "gpt", "ModelUnavailable"): 1}
    for labels, count in {**calls, ("model", "gpt", "ok"): 3, ("model", "default", "ok"): 1}.items():
        assert found["baton_calls_total", *labels] == count, labels
    assert found["baton_cost_usd_total", "model", "gpt"] > 0
    assert found["baton_redactions_total",] >= 1


def test_neither_ids_nor_secrets_are_in_metrics(served: Served) -> None:
    ours = "\n".join(each for each in served.text.splitlines() if each.startswith("baton"))
    assert f"run-{served.queue}" not in ours
    assert KEY not in served.text


def test_a_collector_gets_the_same_metrics_as_the_variables_of_opentelemetry_say(served: Served) -> None:
    got = served.collector
    assert {each.name for each in metrics.ALL} <= got.metrics.keys()
    assert "temporal_request" in got.metrics
    assert got.headers["x-team"] == "ours"
    assert got.resource["service.name"] == "our-worker"
    assert sum(each.as_double + each.as_int for each in got.metrics["baton.runs.ended"].sum.data_points) == 1


async def test_a_protocol_that_a_worker_does_not_speak_is_refused_by_name() -> None:
    given = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with pytest.raises(SettingsError, match="OTEL_EXPORTER_OTLP_PROTOCOL: grpc is not supported, use http/protobuf"):
        async with exporting_metrics(True, given):
            raise AssertionError


def test_lines_of_the_log_say_which_run_and_whose_turn_they_are_about(served: Served) -> None:
    lines = [json.loads(each) for each in served.log.splitlines()]
    (failed,) = [each for each in lines if "ModelUnavailable" in each["message"]]
    (opened,) = [
        each for each in lines if each["message"].startswith("the circuit breaker of Model/default/gpt is open")
    ]
    for each in (failed, opened):
        assert (each["run"], each["member"], each["turn"]) == (f"run-{served.queue}", "a", 1)
        assert each["run_id"] == failed["temporal_activity"]["workflow_run_id"]


def test_a_line_within_a_trace_has_its_ids() -> None:
    stream, logger = io.StringIO(), logging.Logger("traced")
    logger.addHandler(handler_of(lambda text: text.replace(KEY, "[secret]"), "json", stream))
    with TracerProvider().get_tracer("test").start_as_current_span("call") as span:
        logger.warning("with %s", KEY)
    logger.warning("without")
    within, without = (json.loads(each) for each in stream.getvalue().splitlines())
    ids = span.get_span_context()
    assert (int(within["trace_id"], 16), int(within["span_id"], 16)) == (ids.trace_id, ids.span_id)
    assert within["message"] == "with [secret]"
    assert "trace_id" not in without


def test_what_the_sdk_counts_under_labels_that_come_and_go_stays_apart() -> None:
    export = MetricsExport([reader := InMemoryMetricReader()])
    runtime = Runtime(telemetry=TelemetryConfig(metrics=export.buffer))
    counter = runtime.metric_meter.create_counter("counted")
    for number in range(300):
        counter.add(1, {"label": f"{number % 3}"})
        if number % 10 == 9:
            asyncio.run(export.text(""))
    data: Any = reader.get_metrics_data()
    (counted,) = [each for s in data.resource_metrics[0].scope_metrics for each in s.metrics if each.name == "counted"]
    assert [(dict(point.attributes), point.value) for point in counted.data.data_points] == [
        ({"label": label}, 100) for label in "012"
    ]


async def test_a_collector_that_never_answers_does_not_keep_a_worker_from_its_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/metrics"
        exporter = OTLPMetricExporter(endpoint, timeout=600)
        export = MetricsExport([PeriodicExportingMetricReader(exporter)])
        runtime = Runtime(telemetry=TelemetryConfig(metrics=export.buffer))
        async with export.running():
            runtime.metric_meter.create_counter("counted").add(1)
        assert [each.name for each in threading.enumerate() if each.name == "last metrics"], "it still waits, alone"
        exporter.shutdown()


def rows() -> list[str]:
    """The table of docs/metrics.md, from the code."""
    labels = (", ".join(f"`{label}`" for label in each.labels) or "none" for each in metrics.ALL)
    kinds = {"up_down": "gauge"}
    return [
        f"| `{prometheus_name(each)}` | {kinds.get(each.kind, each.kind)} | {own} | {each.help} |"
        for each, own in zip(metrics.ALL, labels, strict=True)
    ]


def test_the_table_of_the_documents_is_that_of_the_code() -> None:
    table = [each for each in DOCS.read_text().splitlines() if each.startswith("| `baton_")]
    assert table == rows(), "\n".join(rows())


DASHBOARD = ROOT / "deploy" / "grafana" / "baton.json"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
OF_PROMETHEUS = {
    "up": {"job", "instance"},
    "temporal_long_request_failure_total": {"operation", "status_code"},
    "temporal_request_failure_total": {"operation", "status_code"},
    "temporal_workflow_task_execution_failed_total": {"workflow_type", "failure_reason"},
}
"""What Prometheus itself knows of each worker, on all of which it puts its labels; and what is counted from the first
failed request to Temporal, or failed workflow task, on."""


def panels() -> list[Json]:
    return [each for each in json.loads(DASHBOARD.read_text())["panels"] if each["type"] != "row"]


def rules() -> list[Json]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


EXPRESSIONS = [
    *((each["title"], target["expr"]) for each in panels() for target in each["targets"]),
    *((each["alert"], each["expr"]) for each in rules()),
]


def parts(node: Any) -> Iterator[Any]:
    """A node of PromQL's syntax tree, and all below it."""
    yield node
    for name in ("expr", "lhs", "rhs", "param", "vector_selector"):
        if below := getattr(node, name, None):
            yield from parts(below)
    for each in getattr(node, "args", ()):
        yield from parts(each)


def read_expression(text: str) -> list[Any]:
    """An expression as PromQL's parser reads it, with the dashboard's variables filled in."""
    filled = text.replace("$__rate_interval", "5m").replace("$__range", "1h").replace("$job", "baton")
    return [*parts(promql_parser.parse(filled))]


@pytest.mark.parametrize(
    ("title", "text"), EXPRESSIONS, ids=[f"{title} {n}" for n, (title, _) in enumerate(EXPRESSIONS)]
)
def test_dashboard_and_alerts_read_what_a_worker_serves(served: Served, title: str, text: str) -> None:
    known = {name: labels | {"job", "instance"} for name, labels in {**served.samples, **OF_PROMETHEUS}.items()}
    nodes = read_expression(text)
    selectors = [each for each in nodes if isinstance(each, promql_parser.VectorSelector)]
    assert selectors
    for each in selectors:
        assert each.name, title
        assert {label.name for label in each.matchers.matchers} <= known.get(each.name, set()), title
    grouped = {
        label
        for each in nodes
        if isinstance(each, promql_parser.AggregateExpr) and each.modifier
        for label in each.modifier.labels
    }
    assert grouped <= set.union(*(known[f"{each.name}"] for each in selectors)), title


def test_every_metric_of_baton_is_shown() -> None:
    shown = " ".join(text for _, text in EXPRESSIONS)
    assert [each.name for each in metrics.ALL if prometheus_name(each) not in shown] == []


def test_grafana_knows_every_field_of_the_dashboard() -> None:
    given = json.loads(DASHBOARD.read_text())
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(json.loads(DASHBOARD.read_text()))))
    assert lost(given, read) == []


def lost(given: Any, read: Any, place: str = "") -> list[str]:
    """What of a JSON value is not in another one, or differs there."""
    if isinstance(given, dict) and isinstance(read, dict):
        return [each for key in given for each in lost(given[key], read.get(key), f"{place}/{key}")]
    if isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        return [each for n, (a, b) in enumerate(zip(given, read, strict=True)) for each in lost(a, b, f"{place}/{n}")]
    return [] if given == read else [place]


def test_the_title_of_every_panel_is_a_question_and_none_covers_another() -> None:
    for each in panels():
        assert each["title"].endswith("?")
        assert each["description"].endswith(".")
    places = [each["gridPos"] for each in json.loads(DASHBOARD.read_text())["panels"]]
    taken = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(taken) == len({*taken})
    assert max(x for x, _ in taken) < 24


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_every_alert_says_what_is_wrong_what_it_means_and_what_to_do(rule: Json) -> None:
    assert rule["alert"].startswith("Baton")
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"].keys() == {"summary", "description", "action"}
    assert all(text.endswith((".", ")")) for text in rule["annotations"].values())
    assert {*re.findall(r"`baton ([a-z-]+)", str(rule))} <= COMMANDS.keys()
    titles = {each["title"] for each in panels()}
    assert {*re.findall(r'\("([^"]+\?)"\)', rule["annotations"]["action"])} <= titles


def test_every_alert_fires_in_a_test_of_promtool() -> None:
    tests = yaml.safe_load(ALERTS.with_name("alerts_test.yaml").read_text())["tests"]
    assert {each["alert"] for each in rules()} <= {*re.findall(r"Baton\w+", str(tests))}


def test_every_alert_is_in_the_documents_under_its_severity() -> None:
    table = re.findall(r"^\| `(\w+)`: [^|]*\| (.*) \|$", DOCS.read_text(), re.MULTILINE)
    named = {(alert, severity) for severity, alerts in table for alert in re.findall(r"`(\w+)`", alerts)}
    assert named == {(each["alert"], each["labels"]["severity"]) for each in rules()}


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool, of Debian's package prometheus")
@pytest.mark.parametrize(("command", "file"), [("check", ALERTS), ("test", ALERTS.with_name("alerts_test.yaml"))])
def test_promtool_accepts_the_alerts_and_they_fire_when_they_should(command: str, file: Path) -> None:
    done = subprocess.run(["promtool", command, "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
