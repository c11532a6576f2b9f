"""Baton's folder on a machine: only its owner may read it, also what an older version has left there."""

import contextlib
import stat
from pathlib import Path

import httpx
import pytest

from baton.contracts.settings import private_folder
from baton.starter.server.embedded import EmbeddedServer
from baton.starter.server.state_dir import StateDir
from tests.harness.ports import own_port, own_ports
from tests.harness.processes import ROOT
from tests.harness.user_machine import UserMachine


def mode(path: Path) -> int:
    """The permissions of a file."""
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.slow
def test_a_run_leaves_nothing_that_others_may_read(machine: UserMachine) -> None:
    folder = machine.state_dir.folder
    folder.mkdir(0o755)
    for name in ("journal.db", "server.log"):  # of an older version
        (folder / name).touch(0o644)
    done = machine.run("run", "-f", ROOT / "samples" / "brainstorming.yaml")
    assert done.returncode == 0
    found: dict[Path, int] = {}
    for each in [folder, *folder.rglob("*")]:
        with contextlib.suppress(FileNotFoundError):  # the worker and the server still work on their databases
            found[each.relative_to(folder)] = mode(each)
    assert {"journal.db", "temporal.db", "dev.json", "dev.log", "sources"} <= {str(each) for each in found}
    assert {name: oct(each) for name, each in found.items() if each & 0o077} == {}


def test_a_folder_with_other_files_keeps_its_mode_and_they_theirs(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "notes.txt").chmod(0o644)
    (tmp_path / "journal.db").touch(0o644)
    tmp_path.chmod(0o755)
    private_folder(tmp_path)
    assert [mode(tmp_path / each) for each in (".", "notes.txt", "journal.db")] == [0o755, 0o644, 0o600]


@pytest.mark.full
async def test_a_page_of_a_browser_can_start_no_run_by_the_embedded_servers_http_api(tmp_path: Path) -> None:
    state, (port, ui), api = StateDir(tmp_path / "s"), own_ports(), own_port()
    with state.lock("dev") as lock:
        assert lock
        server = EmbeddedServer(state.folder, lock, port, ui)
        command = server._command
        server._command = lambda: [*command(), "--http-port", str(api)]  # type: ignore[method-assign]  # a known port
        await server.start()
        try:
            url = f"http://127.0.0.1:{api}/api/v1/namespaces/default/workflows/x"
            body = '{"workflowType":{"name":"query"},"taskQueue":{"name":"baton"}}'
            async with httpx.AsyncClient(timeout=60) as http:
                answer = await http.post(url, content=body, headers={"content-type": "text/plain"})
            assert answer.status_code == 403
        finally:
            await server.stop()
