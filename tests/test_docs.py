"""The documents are true: the paths, links, settings, commands and names in them exist, and none is missing."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from temporalio import workflow

import baton
from baton.contracts import errors
from baton.resources.parse import MANIFEST_KINDS
from baton.resources.tool import OWN_ACTIVITIES
from baton.starter.cli.app import app
from baton.workflows.registry import WORKFLOWS
from tests.harness import field_tables, python_reference
from tests.harness.processes import ROOT
from tests.replay.recorded import HISTORIES
from tests.test_architecture import FOLDERS, LAYERS

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
TEXTS = {file: file.read_text() for file in PAGES}
CURRENT = [file for file in PAGES if file.name != "CHANGELOG.md"]
"""The pages that describe Baton as it is; the changelog also tells of what was."""


def page(name: str) -> str:
    return TEXTS[ROOT / "docs" / name]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_every_link_leads_to_a_file_and_a_heading(file: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", TEXTS[file]):
        path, _, anchor = link.partition("#")
        target = (file.parent / path).resolve() if path else file
        if "://" not in link:
            assert target.exists(), link
            assert not anchor or anchor in anchors(target.read_text()), link


PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:py|toml|yml|lock)|(?:Makefile|Dockerfile))`")
NOT_OURS = ("temporal.toml", "temporalio/", "v0/", ".baton/", "baton/", "activities.py", "workflows.py")
"""Paths that are not in the repository: a user's configuration and modules, a bucket, a folder of data, labels."""


@pytest.mark.parametrize("file", [each for each in PAGES if each.name != "CHANGELOG.md"], ids=lambda file: file.name)
def test_a_path_that_is_named_exists(file: Path) -> None:
    named = {
        each for each in PATH.findall(TEXTS[file]) if not each.startswith(NOT_OURS) and not re.search("N{2}", each)
    }
    ours = {each for each in named if each.split("/")[0] in {*FOLDERS, "tests", "docs", "samples", "benchmarks"}}
    top = {each for each in named if "/" not in each}
    missing = {each for each in ours if "NAME" not in each and not (ROOT / each).exists()}
    everywhere = {each.name for folder in FOLDERS for each in (ROOT / folder).rglob("*.py")}
    assert missing | {each for each in top if not (ROOT / each).exists() and each not in everywhere} == set()


NAME = re.compile(r"`(?:\w+\.)*(_?[A-Z]\w*[a-z_]\w*|_?[a-z]+_\w+|_[a-z]+)`")
INVENTED = {"NEW_ORDER"}


@pytest.mark.parametrize("name", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_a_name_of_the_code_that_is_named_exists(name: str) -> None:
    files = [*(file for each in (*FOLDERS, "tests") for file in (ROOT / each).rglob("*.py")), ROOT / "worker.py"]
    words = {word for file in files for word in re.findall(r"\w+", file.read_text())}
    assert {*NAME.findall(TEXTS[ROOT / name])} - words - INVENTED == set()


def test_every_folder_of_the_package_is_in_the_architecture() -> None:
    text = page("architecture.md")
    rooms = {each for each in LAYERS if (ROOT / each).is_dir()}
    assert {each for each in rooms if f"`{each}/`" not in text} == set()


SETTING = re.compile(r"\bBATON_[A-Z]+(?:_[A-Z]+)*\b")
FOR_TESTS = {"BATON_ARK_MANIFESTS"}


def test_the_settings_of_the_documents_are_those_of_the_code() -> None:
    sources = [ROOT / "worker.py", *(file for each in FOLDERS for file in (ROOT / each).rglob("*.py"))]
    in_code = {name for file in sources for name in SETTING.findall(file.read_text())}
    named = {name for file in CURRENT for name in SETTING.findall(TEXTS[file])}
    assert named - FOR_TESTS == in_code
    tables = page("reference.md") + page("operations.md") + page("encryption.md") + page("gateway.md")
    rows = {name for row in re.findall(r"^\| (`[^|]*) \|", tables, re.MULTILINE) for name in SETTING.findall(row)}
    assert in_code - rows == set()


COMMANDS = dict(typer.main.get_command(app).commands.items())  # type: ignore[attr-defined]


def test_the_commands_of_the_documents_are_those_of_the_command_line() -> None:
    rows = re.findall(r"^\| (`baton [^|]*(?:\\\|[^|]*)*) \| (.*) \|$", page("commands.md"), re.MULTILINE)
    named = {name for row, _ in rows for name in re.findall(r"`baton ([a-z][a-z-]*)", row)}
    assert named == set(COMMANDS)
    for row, text in rows:
        options = {
            option
            for name in re.findall(r"`baton ([a-z][a-z-]*)", row)
            for each in COMMANDS[name].params
            for option in each.opts
        }
        assert {*re.findall(r"(?<![\w-])--?[a-z][a-z-]*", row + text)} <= options, row


def test_every_command_that_is_shown_exists() -> None:
    for file in CURRENT:
        for name in re.findall(r"(?:^|`|bin/)baton ([a-z][a-z-]+)", TEXTS[file], re.MULTILINE):
            assert name in COMMANDS, file


def test_every_make_target_that_is_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = {*re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)}
    for file in CURRENT:
        assert {*re.findall(r"(?:`|^ *|\$ )make ([a-z-]+)", TEXTS[file], re.MULTILINE)} <= targets, file


def test_every_name_of_the_python_interface_is_explained() -> None:
    text = page("python-reference.md") + page("events.md")
    assert [name for name in baton.__all__ if not re.search(rf"\b{name}\b", text)] == []
    used = re.findall(r"\bbaton\.(\w+)", text + page("python.md") + page("cookbook.md"))
    assert {*used} <= {*baton.__all__, "testing"}


def test_every_type_of_error_is_listed_with_its_family() -> None:
    table = page("reference.md").partition("## Errors")[2]
    for name, error in vars(errors).items():
        is_base = name == "BatonError" or name.endswith("Fault")
        if (family := getattr(error, "family", None)) and not is_base:
            (row,) = [row for row in table.splitlines() if row.startswith(f"| `{family}`")]
            assert f"`{name}`" in row


def test_every_workflow_type_is_listed() -> None:
    types = {str(workflow._Definition.must_from_class(each).name) for each in WORKFLOWS}
    for text in (TEXTS[ROOT / "README.md"], page("reference.md")):
        table = text.partition("| workflow type |")[2].partition("\n\n")[0]
        assert {*re.findall(r"`([a-z-]+)`", table)} == types


def fields(model: object) -> Iterator[str]:
    for name, field in getattr(model, "model_fields", {}).items():
        yield field.alias or name


@pytest.mark.parametrize("kind", sorted(MANIFEST_KINDS))
def test_every_field_of_a_manifest_is_in_the_reference(kind: str) -> None:
    spec = MANIFEST_KINDS[kind].model_fields.get("spec")
    text = page("reference.md")
    missing = (
        [name for name in fields(spec.annotation) if not re.search(rf"\b{name}\b", text)]
        if spec and spec.annotation
        else []
    )
    assert missing == []


def test_the_tables_of_fields_are_generated_from_the_models() -> None:
    assert field_tables.generated(page("reference.md")) == page("reference.md"), "write them anew with: make reference"
    assert field_tables.with_events(page("events.md")) == page("events.md"), "write them anew with: make reference"


def test_the_python_reference_is_generated_from_the_signatures() -> None:
    assert python_reference.generated() == page("python-reference.md"), "write it anew with: make reference"


def test_every_kind_of_manifest_has_its_table_of_fields() -> None:
    tables = {name for name, _ in field_tables.MARKER.findall(page("reference.md"))}
    specs = {
        kind: spec.annotation.__name__
        for kind, model in MANIFEST_KINDS.items()
        if (spec := model.model_fields.get("spec")) and isinstance(spec.annotation, type)
    }
    assert {kind for kind, spec in specs.items() if spec not in tables} == {"Capability"}, "Panels show its two fields"


def test_every_design_note_has_its_form_and_its_line_in_the_index() -> None:
    lines = re.findall(r"^- \[(.+)\]\((.+)\): .+$", page("design/README.md"), re.MULTILINE)
    files = sorted(each.name for each in (ROOT / "docs" / "design").glob("*.md") if each.name != "README.md")
    assert sorted(name for _, name in lines) == files
    for title, name in lines:
        heading, statement, *sections = page(f"design/{name}").split("\n\n")
        assert heading == f"# {title}", name
        assert re.fullmatch(r"[A-Z].*\.", statement, re.DOTALL), name
        assert sections[0].startswith("## "), name


def test_the_readme_can_be_read_at_once() -> None:
    assert TEXTS[ROOT / "README.md"].count("\n") <= 150


def test_the_activities_that_an_application_can_not_have_are_listed() -> None:
    text = page("application.md")
    assert {name for name in OWN_ACTIVITIES if f"`{name}`" not in text} == set()


ACTIONS = {
    "WORKFLOW_EXECUTION_STARTED",
    "START_CHILD_WORKFLOW_EXECUTION_INITIATED",
    "UPSERT_WORKFLOW_SEARCH_ATTRIBUTES",
    "ACTIVITY_TASK_SCHEDULED",
    "MARKER_RECORDED",  # a local activity
    "TIMER_STARTED",
    "WORKFLOW_EXECUTION_SIGNALED",
    "WORKFLOW_EXECUTION_UPDATE_ACCEPTED",
}
"""The events that Temporal Cloud bills, in histories without retries of activities."""


def test_the_billed_actions_of_recorded_runs_are_counted_right() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| (\d+) \|$", page("temporal-cloud.md"), re.MULTILINE)
    assert len(rows) >= 5
    for scenario, actions in rows:
        histories = [json.loads(file.read_text()) for file in HISTORIES.glob(f"{scenario}.*.json")]
        types = [event["eventType"].removeprefix("EVENT_TYPE_") for history in histories for event in history["events"]]
        assert sum(each in ACTIONS for each in types) == int(actions), scenario
