"""The architecture: imports run one way, workflow code is deterministic, and every file says what it does."""

import ast
import functools
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import pytest
from pydantic import BaseModel
from temporalio import workflow

from baton.resources.strategies import STRATEGIES
from baton.workflows import registry
from tests.harness.processes import ROOT

LAYERS = (
    "installation",
    "resources",
    "contracts",
    "temporal",
    "observability",
    "journal",
    "workflows/state",
    "workflows/calls",
    "workflows/discussion",
    "workflows/run",
    "workflows/strategies",
    "workflows",
    "activities/runtime",
    "activities/context",
    "activities/tool",
    "activities/model",
    "activities/agent",
    "activities",
    "worker",
    "starter",
    "starter/runs",
    "starter/history",
    "starter/server",
    "starter/console",
    "starter/diagram",
    "starter/report",
    "starter/operations",
    "starter/web_console",
    "starter/gateway",
    "starter/evaluation",
    "starter/api",
    "testing",
    "starter/cli",
    "plugin",
    "workflow",
    "evaluation",
)
"""The folders of the package: each imports its own modules, and modules of the folders above it in this list."""

FOLDERS = (
    *("resources", "contracts", "temporal", "observability", "journal"),
    *("workflows", "activities", "starter", "testing"),
)
FILES = [
    *sorted(file for each in FOLDERS for file in (ROOT / each).rglob("*.py") if not file.name.startswith("_")),
    ROOT / "__init__.py",
    ROOT / "installation.py",
    ROOT / "worker.py",
    ROOT / "plugin.py",
    ROOT / "workflow.py",
    ROOT / "evaluation.py",
]


@functools.cache
def tree_of(file: Path) -> ast.Module:
    """The syntax tree of a file. Each rule reads the trees of the whole package, which takes seconds to parse."""
    return ast.parse(file.read_text())


@pytest.fixture(scope="module", autouse=True)
def _drop_trees() -> Iterator[None]:
    """Frees the trees after the last rule: later tests of the process would collect garbage among them."""
    yield
    tree_of.cache_clear()


def path_of(file: Path) -> str:
    """The path of a file in the repository."""
    return str(file.relative_to(ROOT))


def layer_of(parts: tuple[str, ...]) -> str:
    """The layer of a module, by its path in the package."""
    return next(("/".join(parts[:length]) for length in (2, 1) if "/".join(parts[:length]) in LAYERS), "")


def imported_modules(file: Path) -> Iterator[tuple[str, ...]]:
    """The modules of the package that a file imports when it runs, at its top or in a function, by their paths."""
    path = file.relative_to(ROOT).with_suffix("").parts
    tree = tree_of(file)
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    for_types = {node for block in blocks for each in block.body for node in ast.walk(each)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level and node not in for_types:
            base = (*path[: len(path) - node.level], *(node.module or "").split("."))
            for name in node.names:
                full = tuple(part for part in (*base, name.name) if part)
                target = ROOT.joinpath(*full)
                yield full if target.is_dir() or target.with_suffix(".py").exists() else full[:-1]


def imported(file: Path) -> set[str]:
    """The layers that a file imports."""
    return {layer_of(module) for module in imported_modules(file)}


def absolute(file: Path) -> set[str]:
    """The modules that a file imports by their whole names."""
    tree = tree_of(file)
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}


@pytest.mark.full
def test_imports_run_one_way_between_the_folders() -> None:
    wrong = []
    for file in FILES:
        layer = layer_of(file.relative_to(ROOT).with_suffix("").parts)
        if layer in LAYERS:
            wrong += [
                f"{file.relative_to(ROOT)}: {each}"
                for each in imported(file)
                if each not in LAYERS or LAYERS.index(each) > LAYERS.index(layer)
            ]
    assert wrong == []


@pytest.mark.full
def test_workflows_and_activities_do_not_import_each_other() -> None:
    for file in FILES:
        folder = file.relative_to(ROOT).parts[0]
        layers = {each.partition("/")[0] for each in imported(file)}
        assert folder != "workflows" or not layers & {"activities", "journal"}, file
        assert folder != "activities" or "workflows" not in layers, file


@pytest.mark.full
def test_no_modules_import_each_other_in_a_circle() -> None:
    modules = {file.relative_to(ROOT).with_suffix("").parts: file for file in FILES}
    imports = {module: {*imported_modules(file)} & {*modules} - {module} for module, file in modules.items()}
    while leaves := [module for module, others in imports.items() if not others]:
        for leaf in leaves:
            del imports[leaf]
        for others in imports.values():
            others.difference_update(leaves)
    assert not imports


SOURCES = sorted(file for each in (*FOLDERS, "tests", "samples", "benchmarks") for file in (ROOT / each).rglob("*.py"))


BARE = {*FOLDERS, "worker"}
BARE_IMPORT = re.compile(rf"\b(from\s+|import\s+([\w. ]+,\s*)*)({'|'.join(sorted(BARE))})\b")
"""A text that may import a folder by its bare name. Only files with such a text are parsed, which takes seconds."""


@pytest.mark.full
def test_no_folder_of_the_package_is_imported_by_its_bare_name() -> None:
    suspects = [file for file in (*SOURCES, ROOT / "worker.py") if BARE_IMPORT.search(file.read_text())]
    importing = {path_of(file): {name.split(".")[0] for name in absolute(file)} & BARE for file in suspects}
    assert {path: names for path, names in importing.items() if names} == {}


def test_every_file_states_in_its_first_line_what_it_does() -> None:
    first_lines = {path_of(file): (ast.get_docstring(tree_of(file)) or "").partition("\n")[0] for file in FILES}
    assert [path for path, line in first_lines.items() if not line] == []
    assert [path for path, line in first_lines.items() if "?" in line] == [], "a statement, no question"


def test_no_two_classes_of_the_package_have_the_same_name() -> None:
    where: dict[str, list[str]] = {}
    for file in FILES:
        for node in tree_of(file).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert {name: files for name, files in where.items() if len(files) > 1} == {}


def test_no_module_waits_with_a_function_that_can_ignore_a_cancellation() -> None:
    """``asyncio.wait_for`` of Python 3.11 does if what it waits for is done at that moment. Use ``asyncio.timeout``."""
    assert [file.name for file in FILES if "asyncio.wait_for" in file.read_text()] == []


BANNED = {"time", "random", "uuid", "threading", "os", "socket", "httpx", "httpx2", "sqlalchemy"}
BANNED |= {"openai", "anthropic", "botocore", "aiobotocore"}


@pytest.mark.parametrize("file", [f for f in FILES if "workflows" in f.parts], ids=lambda file: file.name)
def test_workflow_code_has_no_clock_no_chance_and_no_http(file: Path) -> None:
    assert not absolute(file) & BANNED
    nodes = [*ast.walk(tree_of(file))]
    assert not [node for node in nodes if isinstance(node, ast.Set | ast.SetComp)], "sets have no order"
    called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    blocks = [node for node in nodes if isinstance(node, ast.Try) and node.finalbody]
    assert not blocks or file.name == "run_trace.py", "at_end, which leaves out runs that a worker drops"
    assert not called & {"set", "frozenset", "hash", "id", "datetime.now", "datetime.utcnow", "print", "open"}


WAITS = {
    "workflow.wait_condition": ["workflows/run/base.py", "workflows/state/stopping.py"],
    "workflow.sleep": ["workflows/calls/children.py", "workflows/expire.py"],
    "workflow.continue_as_new": ["workflows/run/base.py"],
}
"""Where workflows wait for anything but a call or a child. All waits for people are made by ``StopState.wait``, which
asks whether the run may continue as new meanwhile; the waits in other files end by themselves."""


@pytest.mark.parametrize("name", WAITS)
def test_waits_for_people_are_made_by_one_function(name: str) -> None:
    files = [file for file in FILES if "workflows" in file.parts and "tests" not in file.parts]
    assert [str(file.relative_to(ROOT)) for file in files if calls(file, name)] == WAITS[name]


def test_tasks_of_workflows_are_canceled_by_one_function_which_remembers_them() -> None:
    """The SDK resets ``Task.cancelling`` of a task that is starting a child workflow: only ``was_canceled`` knows."""
    found = []
    for file in FILES:
        if "workflows" not in file.parts or "tests" in file.parts:
            continue
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cancel":
                found.append((str(file.relative_to(ROOT)), ast.unparse(node.func.value)))
    child = "workflow.get_external_workflow_handle(child_id)"  # a workflow, not a task
    assert sorted(found) == [("workflows/calls/children.py", child), ("workflows/state/stopping.py", "task")]


def calls(file: Path, name: str) -> bool:
    """Whether a file calls a function by that name."""
    nodes = ast.walk(tree_of(file))
    return any(isinstance(node, ast.Call) and ast.unparse(node.func) == name for node in nodes)


def test_all_that_there_is_is_installed() -> None:
    installed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {file.parent.relative_to(ROOT) for each in FOLDERS for file in (ROOT / each).rglob("*.py")}
    assert {*installed["packages"]} == {"baton", *(".".join(("baton", *folder.parts)) for folder in folders)}


def test_a_manifests_word_is_a_files_name() -> None:
    for strategy in STRATEGIES:
        assert (ROOT / "workflows" / "strategies" / f"{strategy.replace('-', '_')}.py").exists()
    for kind in ("Query", "Team", "Agent", "Model", "Tool", "Secret"):
        assert f'kind: Literal["{kind}"]' in (ROOT / "resources" / f"{kind.lower()}.py").read_text()


def test_each_strategy_has_a_workflow_of_its_name() -> None:
    assert {workflow._Definition.must_from_class(each).name for each in registry.STRATEGIES} == {*STRATEGIES}


def test_one_verb_names_an_effect_on_both_sides() -> None:
    effects = (ROOT / "workflows" / "calls" / "effects.py").read_text()
    activities = "".join(file.read_text() for file in (ROOT / "activities").glob("*.py"))
    for verb in ("pin", "ask_model", "use_tool", "select", "append"):
        assert f"async def {verb}(" in effects
        assert f'@activity.defn(name="{verb}")' in activities


WITHOUT_LEASE = {
    "admit_run": "writes to the journal alone",
    "append": "writes to the journal alone",
    "ask_person": "writes to the journal alone",
    "audit": "writes to the journal alone",
    "brief": "writes to the journal alone",
    "cancel_agent": "may be repeated: the task is canceled once",
    "check_identity": "computes",
    "check_reply": "computes",
    "conclude": "writes to the journal alone",
    "evaluate": "computes",
    "expire": "deletes what is left",
    "grant": "writes to the journal alone",
    "last_failures": "reads the journal",
    "notify": "may be repeated: the receiver knows an event by its id",
    "pin": "reads manifests and the tools of servers",
    "read_failed_run": "reads the history of a run",
    "read_fork": "reads the history of a run",
    "recall": "reads from the Memory's service",
    "release_run": "writes to the journal, and signals runs, which may be repeated",
    "review": "computes",
}
"""The activities that need no lease, because they can be repeated without a second cost or effect."""


def test_each_activity_makes_its_calls_under_a_lease_or_says_why_it_needs_none() -> None:
    held = dict[str, bool]()
    for file in (ROOT / "activities").glob("*.py"):
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.ClassDef):
                held |= activities_of(node)
    assert {name for name, holds in held.items() if not holds} == {*WITHOUT_LEASE}


def activities_of(node: ast.ClassDef) -> dict[str, bool]:
    """The names of a class's activities, and whether they or the methods that they call hold a lease."""
    methods = {each.name: each for each in node.body if isinstance(each, ast.AsyncFunctionDef)}

    def holds(method: str) -> bool:
        source = ast.unparse(methods[method])
        others = [name for name in methods if name != method and f"self.{name}(" in source]
        return ".leases.hold(" in source or any(map(holds, others))

    names = {name: ast.unparse(each.decorator_list[0]) for name, each in methods.items() if each.decorator_list}
    return {
        decorator.split("'")[1]: holds(name)
        for name, decorator in names.items()
        if decorator.startswith("activity.defn")
    }


DOCUMENTED = {"_replace", "_asdict", "_mapping", "_exit", "_current_frames"}
"""Names with an underscore that a library documents: of named tuples, SQLAlchemy's rows, ``os`` and ``sys``."""


def own_private_names() -> set[str]:
    """All private names that the package itself defines."""
    names = set[str]()
    for file in FILES:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return names


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def foreign_private_names(file: Path, own: set[str]) -> set[str]:
    """The private names of libraries that a module uses or overrides when it runs."""
    tree = tree_of(file)
    imports = {part for name in absolute_at_run(tree) for part in name.split(".") if is_private(part)}
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_private(node.attr)}
    return (imports | (used - own - DOCUMENTED)) | overridden_private_names(file)


def absolute_at_run(tree: ast.Module) -> set[str]:
    """The modules and names of other packages that a module imports, but for those that types alone need."""
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    for_types = {node for block in blocks for each in block.body for node in ast.walk(each)}
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and node not in for_types:
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node not in for_types:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def overridden_private_names(file: Path) -> set[str]:
    """The private names of a module's classes that their bases in other packages have as well."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    module = importlib.import_module(".".join(("baton", *(part for part in parts if part != "__init__"))))
    classes = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
    return {
        name
        for each in classes
        for base in each.__mro__[1:]
        if not base.__module__.startswith("baton.") and not issubclass(base, GENERATES)
        for name in {*vars(each)} & {*vars(base)}
        if is_private(name) and name not in ("_abc_impl", "_is_protocol")
    }


GENERATES = (tuple, Enum, BaseModel)
"""Classes that give private attributes of their own to each class below them."""


def checked_private_names(file: Path) -> set[str]:
    """The private names that a module writes as texts, if it calls ``check_private_names``."""
    tree = tree_of(file)
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    texts = {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return {text for text in texts if is_private(text)} if "check_private_names" in called else set()


@pytest.mark.full
def test_private_names_of_libraries_are_checked_when_a_worker_starts() -> None:
    own = own_private_names()
    unchecked = {str(file.relative_to(ROOT)): foreign_private_names(file, own) for file in FILES}
    found = {name: names - checked_private_names(ROOT / name) for name, names in unchecked.items()}
    assert {name: names for name, names in found.items() if names} == {}


HEAVY = (
    "temporalio",
    "openai",
    "anthropic",
    "aiobotocore",
    "botocore",
    "httpx",
    "httpx2",
    "sqlalchemy",
    "alembic",
    "asyncpg",
    "cryptography",
    "starlette",
    "a2a",
)
SLOW = ("pydantic", "yaml", "jsonschema", "rich", "uvicorn", "common_expression_language")


def imported_by(code: str, *names: str) -> list[str]:
    """Those of the modules that a Python program has imported at its end."""
    program = f"{code}\nimport sys; print('', *[name for name in {names} if name in sys.modules], sep='\\n')"
    printed = subprocess.check_output([sys.executable, "-c", program], cwd="/", text=True)
    return [line for line in printed.splitlines() if line in names]


def command(*arguments: str | Path) -> str:
    """A Python program that runs the command line."""
    given = ["baton", *map(str, arguments)]
    return (
        f"import sys; sys.argv = {given}\nfrom baton.starter.cli import app, exit_codes; exit_codes.exit_code(app.app)"
    )


@pytest.mark.full
def test_help_loads_nothing_but_the_command_line() -> None:
    assert imported_by("from baton.starter.cli import app", *HEAVY, *SLOW, "baton.resources", "asyncio") == []
    assert imported_by(command("--help"), *HEAVY, "pydantic", "yaml", "baton.resources", "baton.contracts") == []


@pytest.mark.full
def test_completion_loads_nothing_but_the_command_line() -> None:
    given = {"_BATON_COMPLETE": "complete_bash", "COMP_WORDS": "baton st", "COMP_CWORD": "1"}
    completing = f"import os; os.environ.update({given})\n{command()}"
    assert imported_by(completing, *HEAVY, "yaml", "baton.resources", "baton.contracts") == []


@pytest.mark.full
def test_validate_loads_the_resources_alone() -> None:
    file = ROOT / "samples" / "brainstorming.yaml"
    unneeded = "jsonschema", "rich", "uvicorn", "baton.contracts", "baton.activities", "baton.starter.server"
    assert imported_by(command("validate", "-f", file), *HEAVY, *unneeded) == []
    assert imported_by(command("validate", "-f", file), "baton.resources") == ["baton.resources"]


@pytest.mark.full
def test_list_loads_no_types_of_runs_and_manifests() -> None:
    program = "import baton.starter.runs.listing, baton.starter.cli.client, baton.starter.console.status"
    assert imported_by(program, "sqlalchemy", "cryptography", "baton.contracts.text", "baton.resources.base") == []


@pytest.mark.full
def test_a_command_collects_no_garbage_while_it_loads_its_libraries_and_as_usual_afterwards() -> None:
    program = """
import gc
from baton.starter.__main__ import postpone_garbage_collection
usual = gc.get_threshold()
gc.collect()
postpone_garbage_collection()
before = gc.get_stats()
import baton.starter.cli.app, baton.starter.cli.client, baton.starter.cli.execute, baton.starter.console.watch
import baton.starter.runs.listing, baton.starter.runs.start
print(gc.get_stats() == before)
garbage = [[] for _ in range(200_000)]
print(gc.get_stats() != before and gc.get_threshold() == usual)
"""
    assert subprocess.check_output([sys.executable, "-c", program], cwd="/", text=True).split() == ["True", "True"]


@pytest.mark.full
def test_a_worker_loads_the_exporter_of_spans_only_where_traces_are_asked_for() -> None:
    assert imported_by("import baton.worker", "baton.observability.span_export") == []


INSIDES = ("baton.activities", "baton.journal", "baton.worker", "baton.workflows")


@pytest.mark.full
def test_a_client_loads_no_insides_of_the_worker() -> None:
    assert imported_by("import baton", *HEAVY, *INSIDES, "pydantic") == []
    unneeded = "openai", "anthropic", "aiobotocore", "sqlalchemy", "starlette"
    assert imported_by("import baton; baton.Agent, baton.connect", *INSIDES, *unneeded) == []


def test_only_the_local_server_and_what_operates_on_the_journal_may_import_the_worker() -> None:
    for room in ("api", "runs", "history", "console", "diagram", "report", "cli"):
        for file in (ROOT / "starter" / room).rglob("*.py"):
            folders = {each.partition("/")[0] for each in imported(file)}
            assert not folders & {"activities", "worker", "workflows"}, file


GATE = "activities/runtime/outbound.py"
"""The only module that connects to servers which manifests, runs, models and other servers name."""

CONNECTED = {
    "a2a": {"activities/agent/a2a.py", "starter/gateway"},
    "aioboto3": {"journal/external_storage.py"},  # to the bucket that the environment names
    "aiobotocore": {"activities/model/bedrock.py"},  # with the gate's check of addresses
    "aiohttp": {"activities/model/bedrock.py"},
    "botocore": {"activities/model/bedrock.py"},
    "alembic": {
        "journal/migrate.py",
        "journal/migrations/version_0001.py",
        "journal/migrations/version_0002.py",
        "journal/migrations/version_0004.py",
        "journal/migrations/version_0005.py",
    },
    "anthropic": {"activities/model/anthropic.py"},
    "anyio": {"activities/tool/mcp/connection.py"},  # for processes
    "asyncpg": {"journal/live_text.py"},  # to the journal
    "http": {"activities/tool/http.py"},  # cookies
    "mcp": {
        *{f"activities/tool/mcp/{name}.py" for name in ("access_tokens", "connection", "input", "request")},
        "starter/gateway/mcp_server.py",  # it serves
    },
    "openai": {"activities/model/openai.py"},
    "opentelemetry": {
        f"observability/{name}.py" for name in ("log", "metrics", "metrics_export", "runtime", "span_export")
    },
    "prometheus_client": {"observability/metrics_export.py"},
    "pydantic_evals": {  # its own judges call models, in the process of who evaluates
        *{"starter/api/ark_evaluations.py", "starter/api/evaluate.py", "starter/cli/evaluate.py", "starter/evaluation"},
    },
    "pytest": {"testing/pytest.py"},  # which nothing imports but tests
    "socket": {
        *{GATE, "activities/model/bedrock.py", "starter/gateway/limits.py"},
        *{"activities/runtime/health.py", "starter/scripted_model.py", "starter/server/embedded.py"},  # they listen
        "starter/gateway/server.py",
    },
    "ssl": {GATE},
    "starlette": {
        *{"activities/runtime/health.py", "starter/gateway", "starter/scripted_model.py"},
        *{"starter/server/codec_server.py", "starter/web_console"},
    },
    "uvicorn": {"activities/runtime/health.py", "starter/gateway", "starter/scripted_model.py"},
}
"""Libraries that can connect to other machines or listen, and the modules or folders that use them."""

UNCONNECTED = {
    *{
        "ag_ui",
        "ahocorasick_rs",
        "cachetools",
        "cel",
        "cryptography",
        "google",
        "jq",
        "jsonschema",
        "jwt",
        "mcp_types",
        "pydantic",
    },
    *{"pydantic_core", "pythonjsonlogger", "referencing", "regex", "rich", "typer", "typing_extensions", "yaml"},
    *{"sqlalchemy", "temporalio"},  # to the journal and to Temporal: those of the environment
    *{"httpx", "httpx2"},  # see ``outside_the_gate``
}
"""Other libraries."""

CONNECTING = {
    "ftplib",
    "imaplib",
    "nntplib",
    "poplib",
    "smtplib",
    "socketserver",
    "telnetlib",
    "urllib.request",
    "xmlrpc",
}
"""Modules of Python that connect to other machines, besides those in ``CONNECTED``."""

OPENING = {"create_connection", "create_datagram_endpoint", "getaddrinfo", "open_connection", "sock_connect"}
"""Functions of Python that do."""

HTTPX = ("httpx", "httpx2")
CLIENTS = {"AsyncClient", "Client", "AsyncHTTPTransport", "HTTPTransport", "DefaultAsyncHttpxClient"}
SHORTCUTS = {"delete", "get", "head", "options", "patch", "post", "put", "request", "stream"}
"""What connects in httpx and httpx2. Clients are classes that ``Outbound.open`` takes, types, and base classes."""

NEEDED = {
    "AsyncOpenAI": "http_client",
    "AsyncAzureOpenAI": "http_client",
    "AsyncAnthropic": "http_client",
    "streamable_http_client": "http_client",
    "sse_client": "httpx_client_factory",
    "ClientConfig": "httpx_client",
}
"""Calls of libraries that make a client of their own unless they are passed one of the gate's."""


def outside_the_gate(path: str, tree: ast.Module) -> Iterator[str]:
    """The code of a module that connects to a server, or may, without the gate."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    made_here = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Attribute) and base.attr in CLIENTS for base in node.bases)
    }
    for node in ast.walk(tree):
        yield from (f"imports {module}" for module in _imports(node) if _may_connect(module, path))
        if path == GATE:
            continue
        if isinstance(node, ast.ImportFrom) and node.module in HTTPX:
            yield f"imports from {node.module}: write {node.module}.{node.names[0].name}"
        elif isinstance(node, ast.Import):
            yield from (f"renames {alias.name}" for alias in node.names if alias.name in HTTPX and alias.asname)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if _connects(node, node.value.id, path, parents):
                yield f"uses {node.value.id}.{node.attr}"
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in made_here:
                yield f"makes a {name}"
            if (needed := NEEDED.get(name)) and not _passes(needed, node, parents):
                yield f"calls {name} without {needed}"


def _may_connect(module: str, path: str) -> bool:
    top = module.partition(".")[0]
    if top in CONNECTED:
        return not any(path == place or path.startswith(f"{place}/") for place in CONNECTED[top])
    known = top in sys.stdlib_module_names or top in UNCONNECTED
    return not known or any(f"{module}.".startswith(f"{name}.") for name in CONNECTING)


def _connects(node: ast.Attribute, owner: str, path: str, parents: dict[ast.AST, ast.AST]) -> bool:
    if node.attr in CLIENTS and owner in (*HTTPX, "openai", "anthropic"):
        return not _is_type_or_opened(node, parents)
    return (node.attr in SHORTCUTS and owner in HTTPX) or (node.attr in OPENING and path not in CONNECTED["socket"])


def _imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def _is_type_or_opened(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether a class is passed to ``open``, or is a base class, or in an annotation."""
    parent = parents[node]
    if isinstance(parent, ast.Call):
        return isinstance(parent.func, ast.Attribute) and parent.func.attr == "open" and node in parent.args[:1]
    if isinstance(parent, ast.ClassDef):
        return node in parent.bases
    while isinstance(parent, ast.Subscript | ast.BinOp | ast.Tuple):
        node, parent = parent, parents[parent]
    annotated = isinstance(parent, ast.arg | ast.AnnAssign) and parent.annotation is node
    return annotated or (isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef) and parent.returns is node)


def _passes(needed: str, call: ast.Call, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether a call has the argument, by itself or in a dictionary that its function makes."""
    if any(keyword.arg == needed for keyword in call.keywords):
        return True
    node: ast.AST = call
    while not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
        node = parents[node]
    keys = [key for each in ast.walk(node) if isinstance(each, ast.Dict) for key in each.keys]
    unpacked = any(keyword.arg is None for keyword in call.keywords)
    return unpacked and any(isinstance(key, ast.Constant) and key.value == needed for key in keys)


def test_activities_use_the_client_of_baton_and_not_that_of_an_application() -> None:
    """A worker to which the plugin was added gives activities a client without Baton's types, keys and storage."""
    calling = [
        path_of(file) for file in FILES if "activity.client()" in file.read_text().replace("``activity.client()``", "")
    ]
    assert calling == []


@pytest.mark.full
def test_no_module_but_the_gate_connects_to_servers() -> None:
    connecting = {path_of(file): [*outside_the_gate(path_of(file), tree_of(file))] for file in FILES}
    assert {path: places for path, places in connecting.items() if places} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import requests",
        "from urllib.request import urlopen",
        "import socket",
        "from http.client import HTTPSConnection",
        "import smtplib",
        "from httpx import AsyncClient",
        "import httpx as h",
        "import httpx\nhttp = httpx.AsyncClient()",
        "import httpx2\nmake = partial(httpx2.AsyncClient, timeout=5)",
        "import httpx\nhttpx.get('http://h')",
        "import httpx\nclient_type = httpx.Client",
        "import httpx\nclass Mine(httpx.AsyncClient): ...\nMine()",
        "import asyncio\nasyncio.open_connection('h', 80)",
        "loop.create_connection(None, 'h', 80)",
        "AsyncOpenAI(base_url='http://h')",
        "def new(**options): return AsyncAnthropic(**options)",
        "sse_client('http://h')",
        "import aiohttp",
    ],
)
def test_a_client_that_bypasses_the_gate_would_be_found(code: str) -> None:
    assert [*outside_the_gate("activities/tool/new.py", ast.parse(code))]


def test_only_its_own_module_and_pin_make_the_catalog_of_a_run() -> None:
    """From then on it is derived, by methods that keep the provenance of its manifests."""
    making = {"RunCatalog(": set[str](), "RunCatalog.of(": set[str](), "RunCatalog.of_files(": set[str]()}
    for file in FILES:
        for call, files in making.items():
            if call in file.read_text().replace("class RunCatalog(", ""):
                files.add(str(file.relative_to(ROOT)))
    assert making == {
        "RunCatalog(": {"resources/run_catalog.py"},
        "RunCatalog.of(": {"activities/pin.py"},
        "RunCatalog.of_files(": {"starter/operations/agent_tools.py", "starter/operations/doctor.py"},
    }


def test_a_worker_leaves_the_event_loops_own_threads_to_look_ups_of_names() -> None:
    """A server of names that is slow must not delay Secrets, encryption and redaction."""
    for file in FILES:
        if file.relative_to(ROOT).parts[0] in ("activities", "journal", "observability", "temporal", "worker.py"):
            assert "to_thread(" not in file.read_text(), file
            assert "run_in_executor(None" not in file.read_text(), file
