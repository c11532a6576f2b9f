"""Commands that run a server, a worker or the gateway until Ctrl-C: dev, worker, serve, mcp and scripted-model."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...installation import missing_extra, require
from ..errors import UsageError
from .exit_codes import REFUSED, CommandEndError
from .options import Recursive
from .terminal import log_messages, print_message

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from temporalio.client import Client

    from ..server.dev import DevOptions
    from ..server.state_dir import DevServer, StateDir

app = typer.Typer()


Manifests = Annotated[
    list[Path] | None, typer.Option("-f", "--file", help="A file or folder of manifests for the worker; repeatable.")
]
Port = Annotated[int | None, typer.Option(help="The server's port; by default 7233, or another if it is taken.")]
UiPort = Annotated[int | None, typer.Option(help="The UI's port; by default 8233, or another if it is taken.")]


@app.command()
def dev(
    file: Manifests = None,
    recursive: Recursive = False,
    port: Port = None,
    ui_port: UiPort = None,
    linger: Annotated[float | None, typer.Option(hidden=True, help="Seconds to keep running while unused.")] = None,
) -> None:
    """Run a local Temporal server, its UI, a worker and the console, until Ctrl-C."""
    import asyncio

    from ...contracts.settings import importable_from_here
    from ..server.connection import stop_idle
    from ..server.dev import DevOptions, log_before_start, logs_json, run_dev_server
    from ..server.state_dir import StateDir
    from .targets import load_manifests

    if logs_json():
        log_before_start("json")
    importable_from_here()
    state_dir = StateDir.of(os.environ)
    own = load_manifests(file or (), recursive=recursive)
    options = DevOptions(own, port, ui_port, linger, gateway=None if linger is not None else _dev_gateway())
    if linger is None:
        stop_idle(state_dir)  # one that a command has started is replaced
    if not asyncio.run(run_dev_server(state_dir, options, partial(_announce, options, state_dir))):
        running = state_dir.read_dev_server()
        end = ""
        if running and running.lingering:
            end = "; it stops automatically when no run is open and no command uses it"
        print_message(f"already running at {running.address}{end}" if running else "already running")
        raise CommandEndError(REFUSED)


def _dev_gateway() -> "Callable[[Client, Mapping[str, str]], AbstractAsyncContextManager[str]] | None":
    """What serves teams to other programs beside a worker; None if its packages are not installed."""
    if missing_extra("gateway", "the gateway"):
        return None
    from ..gateway.server import dev_gateway

    return dev_gateway


def _announce(options: "DevOptions", state_dir: "StateDir", dev: "DevServer", taken: list[int]) -> None:
    """Prints the addresses of the server, and how other programs connect to it."""
    if taken:
        used = f"port {taken[0]} is" if len(taken) == 1 else f"ports {' and '.join(map(str, taken))} are"
        print_message(f"note: {used} in use, perhaps by another Temporal server; using other ports.")
    print_message(f"Temporal server: {dev.address}, UI: {dev.ui}, data: {state_dir.folder}")
    print_message(f"Worker started, {options.own.catalog.summary} loaded. Press Ctrl-C to stop.")
    if dev.gateway:
        print_message(f"Console: {dev.gateway}")
        print_message(f"Teams for other programs: {dev.gateway}, such as OPENAI_BASE_URL={dev.gateway}/v1")
    elif missing := missing_extra("gateway", "the console and the HTTP API"):
        print_message(f"note: {missing}")
    print_message(f"For other clients of Temporal:\n  export TEMPORAL_ADDRESS={dev.address}")


@app.command()
def worker(
    paths: Annotated[list[Path] | None, typer.Argument(metavar="[PATH]...", help="The same as -f.")] = None,
    file: Manifests = None,
    recursive: Recursive = False,
) -> None:
    """Run a worker for the configured Temporal server, or for the local one, until Ctrl-C."""
    from ..server.dev import log_before_start, logs_json, run_worker_process

    if logs_json():
        log_before_start("json")
    if code := run_worker_process([*(file or ()), *(paths or ())], print_message, recursive=recursive):
        raise CommandEndError(code)


@app.command("scripted-model")
def scripted_model(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A YAML file with the replies.")],
    port: Annotated[int, typer.Option(help="The port to listen on; 0 selects a free port.")] = 8000,
) -> None:
    """Serve scripted replies over OpenAI's API, to try a team without a language model."""
    require("worker", "the scripted model")
    from pydantic import ValidationError

    from ...resources.problems import dotted_path, explain_errors
    from ..scripted_model import Script, ScriptedModel

    try:
        replies = Script.read(script)
    except ValidationError as error:
        problems = (f"{dotted_path(path)}: {text}" for path, text in explain_errors(error, Script))
        raise UsageError(f"{script}: {'; '.join(problems)}") from None
    with ScriptedModel(replies.answer).serve(port) as url:
        print_message(f"Serving scripted replies: OPENAI_BASE_URL={url}")
        signal.pause()


@app.command()
def serve(
    host: Annotated[
        str, typer.Option(help="The address to listen on; any but a loopback address needs keys.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 selects a free port.")] = 8080,
    namespace: Annotated[
        list[str] | None,
        typer.Option("-n", "--namespace", help="A namespace whose teams and agents are all served; '*' for all."),
    ] = None,
) -> None:
    """Serve teams and agents over HTTP to other programs, until Ctrl-C."""
    require("gateway", "baton serve")
    from ..gateway.server import listen, log_to_stderr_as_set, run_gateway
    from .client import with_client

    log_to_stderr_as_set(os.environ)
    log_messages()
    environ = {**os.environ, **({"BATON_GATEWAY_NAMESPACES": ",".join(namespace)} if namespace else {})}
    try:
        listener = listen(host, port)
    except OSError as error:
        raise UsageError(f"the gateway can't listen at {host}:{port}: {error.strerror}") from None

    async def run(client: "Client") -> None:
        await run_gateway(client, host, listener, environ, announce=print_message)

    with listener:
        with_client(run)


@app.command()
def mcp(
    namespace: Annotated[
        list[str] | None,
        typer.Option("-n", "--namespace", help="A namespace whose teams and agents are all tools; by default all."),
    ] = None,
) -> None:
    """Serve teams and agents as MCP tools over stdin and stdout, to the program that starts this command."""
    require("gateway", "baton mcp")
    from ..gateway.app import Gateway
    from ..gateway.mcp_server import serve_stdio
    from .client import with_client

    # Who starts this command may ask everything anyway: unlike over HTTP, nothing has to be named.
    named = ",".join(namespace or ()) or os.environ.get("BATON_GATEWAY_NAMESPACES") or "*"
    environ = {**os.environ, "BATON_GATEWAY_NAMESPACES": named}

    async def run(client: "Client") -> None:
        gateway = Gateway.of(client, environ)
        await serve_stdio(gateway.targets, gateway.runs)

    with_client(run)


@app.command("gateway-key")
def gateway_key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the key's user, as events show it.")],
    file: Annotated[Path, typer.Option("-f", "--file", help="The file of keys to which it is added.")],
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="The namespace of the ServiceAccount.")
    ] = "default",
    service_account: Annotated[
        str, typer.Option(help="The ServiceAccount with whose rights runs start: NAME or NAMESPACE/NAME.")
    ] = "default",
    all_runs: Annotated[
        bool, typer.Option("--all-runs", help="The key also sees and controls the runs of others.")
    ] = False,
    group: Annotated[
        list[str] | None, typer.Option("--group", help="A group of the key's holder, for approvers; repeatable.")
    ] = None,
) -> None:
    """Make a key for the gateway: print it, and add its hash to a file of keys (BATON_GATEWAY_KEYS)."""
    require("gateway", "baton gateway-key")
    from pydantic import ValidationError

    from ...contracts.settings import SettingsError
    from ...resources.rights import DEFAULT_ACCOUNT
    from ..gateway.access import KeyEntry, add_key, hash_of, new_key, refused_account

    key = new_key()
    of_account, _, account = service_account.rpartition("/")
    try:
        entry = KeyEntry(
            name=name,
            sha256=hash_of(key),
            namespace=of_account or namespace,
            service_account=account,
            all_runs=all_runs,
            groups=tuple(group or ()),
        )
        add_key(file, entry)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise UsageError(f"{first['loc'][0]}: {first['msg'].removeprefix('Value error, ')}") from None
    except (OSError, SettingsError) as error:
        raise UsageError(str(error)) from None
    if entry.service_account != DEFAULT_ACCOUNT:
        print_message(f"note: {refused_account(entry.caller.account)}")
    print_message(f"added {name} to {file}; the key is shown only now:")
    typer.echo(key)
