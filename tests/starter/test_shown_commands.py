"""The commands and programs that the documents show run as they are shown."""

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from temporalio.client import Client, WorkflowFailureError

from baton.starter.server.embedded import EmbeddedServer
from baton.testing import Reply, Script, ScriptedModel, ScriptLine
from tests.harness.environment import KEY
from tests.harness.processes import PATIENCE, ROOT, WorkerProcess, end_open_runs, process_env
from tests.harness.user_machine import UserMachine

README = (ROOT / "README.md").read_text()
SAMPLE = ROOT / "samples" / "brainstorming.yaml"
SCRIPT = ROOT / "samples" / "scripts" / "brainstorming.yaml"
COMMANDS = re.findall(r"^baton (graph .*?)(?: *[#>].*)?$", (ROOT / "docs" / "commands.md").read_text(), re.MULTILINE)


def test_the_manifests_of_the_readme_stand_in_the_sample() -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    sample = {each["metadata"]["name"]: each for each in yaml.safe_load_all(SAMPLE.read_text())}
    for manifest in yaml.safe_load_all(shown):
        spec = sample[manifest["metadata"]["name"]]["spec"]
        assert {**spec, **manifest["spec"]} == spec


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_is_shown_can_be_typed(machine: UserMachine, command: str) -> None:
    shutil.copytree(ROOT / "samples", machine.folder / "samples")
    assert machine.run(*shlex.split(command)).returncode == 0


@pytest.mark.full
def test_the_commands_of_the_readme_run_in_their_order_in_a_clean_copy(machine: UserMachine) -> None:
    shutil.copytree(ROOT / "samples", machine.folder / "samples")
    (machine.folder / "starter").mkdir()
    shutil.copy(ROOT / "starter" / "plain_client.py", machine.folder / "starter")
    (machine.folder / ".venv").symlink_to(Path(sys.executable).parent.parent)
    blocks = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    typed = ["\n".join(re.findall(r"^\$ (.*)$", block, re.MULTILINE)) for block in blocks]
    assert typed[0] == "make demo", "which has a test of its own"
    for commands in typed[1:]:
        if " dev " in commands:
            machine.background.append(subprocess.Popen(shlex.split(commands), env=machine.env, cwd=machine.folder))
            while (dev := machine.state_dir.read_dev_server()) is None or dev.lingering:
                time.sleep(0.05)
            machine.env["TEMPORAL_ADDRESS"] = dev.address
        else:
            subprocess.run(["sh", "-ec", commands], env=machine.env, cwd=machine.folder, check=True)


@pytest.mark.full
def test_the_output_of_make_demo_is_as_shown(machine: UserMachine) -> None:
    shown = README.partition("$ make demo\n")[2].partition("```")[0]
    run_id = re.compile(r"brainstorming-session-\w{6}")
    done = machine.run("run", "-f", SAMPLE)
    lines = run_id.sub("ID", re.sub(r"\d+ s$", "N s", done.stderr, flags=re.MULTILINE)).splitlines()
    for line in run_id.sub("ID", re.sub(r"\d+ s$", "N s", shown, flags=re.MULTILINE)).splitlines():
        assert line == "…" or line in lines or line.startswith("started ID  http://127.0.0.1:"), line


@pytest.mark.full
@pytest.mark.shared_server
def test_the_program_of_the_python_page_runs_by_itself(machine: UserMachine) -> None:
    text = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL)[0]
    machine.script(
        ScriptLine(system="You write", say=[Reply(text="Rivers carry salt into it.")]),
        ScriptLine(system="You shorten", say=[Reply(text="Rivers salt it.")]),
    )
    program = machine.folder / "program.py"
    program.write_text(text)
    done = subprocess.run(
        [sys.executable, program], env=machine.env, cwd=machine.folder, capture_output=True, text=True, timeout=PATIENCE
    )
    started, *said = done.stdout.splitlines()
    assert started.startswith("started review-"), done.stderr
    assert said == [
        "writer Rivers carry salt into it.",
        "editor Rivers salt it.",
        "Rivers salt it.",
    ], done.stderr


@pytest_asyncio.fixture(loop_scope="session")
async def address(server: EmbeddedServer, client: Client, tmp_path: Path) -> AsyncIterator[str]:
    """The address of a server with a worker that has the sample's resources.

    The model takes a second for its first answer, and longer for others: the commands are typed before the run ends.
    """
    await end_open_runs(client)
    script = Script.read(SCRIPT).model_copy(update={"delay": 0.0})
    model = ScriptedModel(lambda request: script.answer(request).with_default_delay(min(len(model.requests), 20)))
    with model.serve() as url:
        env = process_env(
            TEMPORAL_ADDRESS=server.address, BATON_HOME=str(tmp_path), OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY
        )
        worker = WorkerProcess(env, tmp_path / "worker.log", SAMPLE)
        worker.start()
        while "Worker started" not in worker.log.read_text():
            await asyncio.sleep(0.02)
        yield server.address
        assert await worker.stop() == 0


@pytest.mark.full
async def test_the_temporal_commands_of_the_reference_can_be_typed(address: str) -> None:
    reference = (ROOT / "docs" / "reference.md").read_text()
    (commands,) = re.findall(r"```sh\n(temporal workflow start.*?)```", reference, re.DOTALL)
    unique = uuid.uuid4().hex[:6]
    own = commands.replace("my-run", f"my-run-{unique}").replace("my-query", f"my-query-{unique}")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        "sh", "-ec", own, stdout=asyncio.subprocess.PIPE, env=process_env(TEMPORAL_ADDRESS=address, PATH=path)
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert "enough for today" in out.decode()
    client = await Client.connect(address)
    with pytest.raises(WorkflowFailureError):  # it has been canceled; an open run would hinder workers of later tests
        await client.get_workflow_handle(f"my-query-{unique}").result()
