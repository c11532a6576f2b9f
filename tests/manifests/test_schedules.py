"""Schedules in files: what is refused, and what their queries need."""

import pytest
from temporalio.client import Client, Schedule, ScheduleActionStartWorkflow, ScheduleSpec

from baton.resources.problems import ManifestError
from baton.resources.schedule import SHORTHANDS, check_cron
from baton.resources.schedule import Schedule as ScheduleManifest
from tests.harness.environment import Json, agent, manifest
from tests.harness.manifests import Writer, query

ACCEPTED = (
    "0 9 * * 1-5",
    "*/15 * * * *",
    "5/20 8-18 1,15 jan-MAR,Dec 0-7",
    "0 0 29 2 *",
    "0 9 * * mon,7 2030-2040/5",
    "30 0 9 * * sun 2030",
    "0  9 * *  *",
    "@every 90s",
    "@every 1h30m",
    *SHORTHANDS,
)

REFUSED = {
    "": "has 0 fields",
    "0 9 * *": "has 4 fields",
    "60 * * * *": "minute: '60' must be from 0 to 59",
    "0 24 * * *": "hour: '24'",
    "0 9 0 * *": "day of the month: '0'",
    "0 9 * 13 *": "month: '13'",
    "0 9 * * 8": "day of the week: '8'",
    "0 9 * * 1#2": "day of the week: '1#2'",
    "0 9 L * *": "day of the month: 'L'",
    "0 9 * * fri-mon": "'fri-mon' ends before it begins",
    "*/0 * * * *": "minute: '*/0' has no step",
    "*/x * * * *": "minute: '*/x' has no step",
    "-1 * * * *": "minute: '-1' must be from 0 to 59",
    "1-2-3 * * * *": "minute: '1-2-3' must be",
    "\u0665 * * * *": "minute: '\u0665' must be",
    "0 0 1 1 * 1999": "year: '1999' must be from 2000",
    "0 0 30 2 *": "never fires",
    "0 0 31 4,jun *": "never fires",
    "TZ=UTC 0 9 * * *": "set timeZone instead",
    "0 9 * * * # daily": "'#' must be from 0 to 7",
    "@reboot": "'@reboot' is unknown",
    "@every": "'@every' is unknown",
    "@every 500ms": "less than a second",
    "@every soon": "is not a duration",
}


def schedule(**spec: object) -> Json:
    return manifest("Schedule", "s", {"schedule": "0 9 * * *", **spec})


async def test_temporal_takes_every_cron_expression_that_is_accepted(client: Client) -> None:
    for number, text in enumerate(ACCEPTED):
        assert check_cron(text) == text
        action = ScheduleActionStartWorkflow("none", id="none", task_queue="none")
        made = Schedule(action=action, spec=ScheduleSpec(cron_expressions=[text]))
        handle = await client.create_schedule(f"accepted-{number}", made)
        assert (await handle.describe()).info.next_action_times, text
        await handle.delete()


@pytest.mark.parametrize(("text", "why"), REFUSED.items(), ids=REFUSED)
def test_a_cron_expression_that_is_wrong_is_refused_with_the_field(write: Writer, text: str, why: str) -> None:
    [problem] = write.refusal(schedule(query="q") | {"spec": {"schedule": text, "query": "q"}})
    assert problem.startswith("m.yaml:6: Schedule/default/s: spec.schedule: ")
    assert why in problem


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"query": "q", "timeZone": "Europe/Berln"}, "spec.timeZone: 'Europe/Berln' is not a time zone"),
        ({"query": "q", "timeZone": "../etc/passwd"}, "spec.timeZone: '../etc/passwd' is not a time zone"),
        ({"query": "q", "timeZone": ""}, "spec.timeZone: '' is not a time zone"),
        ({"query": "q", "overlapPolicy": "Forbid"}, "'Forbid' is unknown; write 'Skip'"),
        ({"query": "q", "overlapPolicy": "TerminateOther"}, "write 'CancelOther'"),
        ({"query": "q", "concurrencyPolicy": "Forbid"}, "is not a field of Schedule; write overlapPolicy"),
        ({"query": "q", "suspend": True}, "is not a field of Schedule; write paused"),
        ({"query": "q", "catchupWindow": "2s"}, "spec.catchupWindow: is '2s', must be 10s or more"),
        ({"query": "q", "jitter": "some"}, "spec.jitter: is not a duration"),
        ({}, "spec.query: is missing"),
        ({"query": "q", "queryTemplate": {"spec": {"input": "?", "team": {"name": "t"}}}}, "keep one of them"),
        ({"queryTemplate": {"spec": {"input": "?"}}}, "spec.queryTemplate.spec.targets: is missing"),
    ],
)
def test_a_mistake_in_a_schedule_names_its_field(write: Writer, given: Json, why: str) -> None:
    [problem] = write.refusal(schedule(**given))
    assert "Schedule/default/s: spec" in problem
    assert why in problem


def test_a_query_that_does_not_exist_is_refused_with_file_resource_and_field(write: Writer) -> None:
    loaded = write.load(schedule(query="question"), query(targets=[{"type": "agent", "name": "a"}]), agent("a"))
    [found] = [each for each in loaded.catalog.manifests if isinstance(each, ScheduleManifest)]
    with pytest.raises(ManifestError) as error:
        loaded.scheduled_query(found, elsewhere=False)
    [problem] = error.value.lines()
    assert problem == (
        f"{write.folder}/m.yaml:7: Schedule/default/s: spec.query: Query default/question is not in the files; known: q"
    )


def test_a_team_that_a_query_in_its_schedule_needs_is_refused_with_its_line(write: Writer) -> None:
    template = {"spec": {"input": "Why?", "targets": [{"type": "team", "name": "gone"}]}}
    loaded = write.load(schedule(queryTemplate=template))
    [found] = [each for each in loaded.catalog.manifests if isinstance(each, ScheduleManifest)]
    with pytest.raises(ManifestError, match=r"m.yaml:12: .*Team default/gone is not in the files"):
        loaded.scheduled_query(found, elsewhere=False)
    assert [each.field for each in loaded.unresolved()] == ["spec.queryTemplate.spec.targets[0].name"]


def test_a_query_in_a_schedule_has_the_schedules_name_and_its_own_labels(write: Writer) -> None:
    spec = {"input": "Why?", "targets": [{"type": "agent", "name": "a"}]}
    template = {"metadata": {"labels": {"baton/priority": "1"}}, "spec": spec}
    loaded = write.load(schedule(queryTemplate=template), agent("a"))
    [found] = [each for each in loaded.catalog.manifests if isinstance(each, ScheduleManifest)]
    made, catalog = loaded.scheduled_query(found, elsewhere=False)
    assert made.id == "Query/default/s"
    assert made.metadata.labels == {"baton/priority": "1"}
    assert [each.id for each in catalog.manifests] == ["Agent/default/a", "Query/default/s"]


def test_a_query_in_a_schedule_may_not_hide_one_of_the_files(write: Writer) -> None:
    spec = {"input": "Why?", "targets": [{"type": "agent", "name": "a"}]}
    loaded = write.load(schedule(queryTemplate={"spec": spec}), manifest("Query", "s", spec), agent("a"))
    [found] = [each for each in loaded.catalog.manifests if isinstance(each, ScheduleManifest)]
    with pytest.raises(ManifestError, match="Query/default/s is also in the files"):
        loaded.scheduled_query(found, elsewhere=False)
