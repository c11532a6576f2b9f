"""Runs the brainstorming sample on the embedded server with a scripted model: no key, no Docker.

python samples/demo.py
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

from baton.starter.scripted_model import Script, ScriptedModel
from baton.starter.server.state_dir import DevServer, StateDir

HERE = Path(__file__).parent
BATON = Path(sys.executable).parent / "baton"
LOG = "demo.log"

AFTERWARDS = """
The words above are scripted. To run it with a language model:

    OPENAI_API_KEY=sk-... {baton} run -f {sample}

(with OPENAI_BASE_URL for any other OpenAI-compatible server). To see the run in the console again:

    BATON_HOME={folder} {baton} dev        and open {console}
"""


def main() -> int:
    """Runs the sample to its end, and stops everything it has started."""
    state_dir = StateDir(StateDir.of(os.environ).folder / "demo")  # apart from real runs
    if dev := state_dir.read_dev_server():
        print(f"a server and worker run here already, at {dev.address}: end them first", file=sys.stderr)
        return 1
    sample = HERE / "brainstorming.yaml"
    with ScriptedModel(Script.read(HERE / "scripts" / "brainstorming.yaml").answer).serve() as url:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TEMPORAL_")}
        environment |= {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "BATON_HOME": str(state_dir.folder)}
        environment["TEMPORAL_CONFIG_FILE"] = os.devnull
        _report(f"Starting a Temporal server and a worker in {_short(state_dir.folder)} ...")
        with _dev(state_dir, environment) as dev:
            if dev is None:
                print(f"they did not start: {_last_line(state_dir)}", file=sys.stderr)
                return 1
            _report(f"Asking the team in {_short(sample)} ...")
            run = subprocess.run([BATON, "run", "-f", sample, "-o", "yaml"], env=environment, check=False)
            console = _console(dev)
            if sys.stdin.isatty() and sys.stdout.isatty():
                _report(f"The run is in the console: {console}\nPress Enter to end the demo.")
                with suppress(EOFError, KeyboardInterrupt):
                    input()
            _report("Stopping the server and the worker ...")
    shown = AFTERWARDS.format(
        baton=_short(BATON), sample=_short(sample), console=console, folder=_short(state_dir.folder)
    )
    print(shown)
    return run.returncode


def _console(dev: DevServer) -> str:
    """The address of the newest run in the console, or of Temporal's UI if no gateway is served."""
    if dev.gateway is None:
        return f"{dev.ui}/namespaces/default/workflows"
    for _ in range(50):  # Temporal lists a run a moment after its start
        with urlopen(f"{dev.gateway}/runs?limit=1", timeout=10) as response:
            if runs := json.load(response)["runs"]:
                return f"{dev.gateway}/#/runs/{runs[0]['id']}"
        time.sleep(0.1)
    return dev.gateway


@contextmanager
def _dev(state_dir: StateDir, environment: dict[str, str]) -> Iterator[DevServer | None]:
    """Runs a server and worker while the block runs."""
    with state_dir.open(LOG, "w") as log:
        process = subprocess.Popen([BATON, "dev"], env=environment, stderr=log)
    while not (dev := state_dir.read_dev_server()) and process.poll() is None:
        time.sleep(0.05)
    try:
        yield dev
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _report(step: str) -> None:
    print(step, file=sys.stderr, flush=True)


def _last_line(state_dir: StateDir) -> str:
    log = state_dir.file(LOG)
    return f"{(log.read_text(errors='replace').splitlines() or ['it says nothing'])[-1]} (see {_short(log)})"


def _short(path: Path) -> str:
    return os.path.relpath(path)


if __name__ == "__main__":
    sys.exit(main())
