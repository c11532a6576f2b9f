"""What does a run look like? Brainstorming, on the embedded server and a scripted model: no key, no Docker.

python samples/demo.py
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from starter.home import Home
from starter.script import Script
from starter.scripted_model import ScriptedModel

HERE = Path(__file__).parent
BATON = Path(sys.executable).parent / "baton"

AFTERWARDS = """
The words above are scripted. To hear a language model instead:

    OPENAI_API_KEY=sk-... {baton} run -f {sample}

(with OPENAI_BASE_URL for any other server that speaks OpenAI's protocol). To see the run in Temporal's UI:

    {baton} dev        and open {ui}
"""


def main() -> int:
    """Runs the sample to its end and leaves nothing running."""
    home = Home.of(os.environ)
    sample = HERE / "brainstorming.yaml"
    with ScriptedModel(Script.read(HERE / "scripts" / "brainstorming.yaml").answer).serving() as url:
        environment = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "scripted"}
        environment.pop("TEMPORAL_ADDRESS", None)
        code = subprocess.run([BATON, "run", "-f", sample, "-o", "yaml"], env=environment, check=False).returncode
        ui = (dev.ui if (dev := home.read_dev()) else "").rstrip("/")
        _stop(home)
    print(AFTERWARDS.format(baton=_short(BATON), sample=_short(sample), ui=f"{ui}/namespaces/default/workflows"))
    return code


def _stop(home: Home) -> None:
    """Ends the server and worker that the run has started, and waits until they have ended."""
    dev = home.read_dev()
    while dev and home.read_dev():
        os.kill(dev.pid, signal.SIGTERM)
        time.sleep(0.5)


def _short(path: Path) -> str:
    return os.path.relpath(path)


if __name__ == "__main__":
    sys.exit(main())
