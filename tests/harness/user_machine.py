"""On what does a user type? A machine of one's own, with a home, a model server, and commands and terminals."""

import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import yaml

from baton.starter.scripted_model.script import Reply, Request, Script, ScriptLine
from baton.starter.scripted_model.server import ScriptedModel
from baton.starter.server.state_dir import DevServer, StateDir
from tests.harness.processes import BATON, ROOT, baton

SCRIPT = ROOT / "samples" / "scripts" / "brainstorming.yaml"


class Terminal:
    """A terminal of 80 columns and 24 lines in which one command was typed."""

    def __init__(self, command: list[str | Path], env: dict[str, str], cwd: Path) -> None:
        ours, its = pty.openpty()
        termios.tcsetwinsize(its, (24, 80))
        self._out, self._seen = ours, b""
        env = {**env, "TERM": "xterm-256color"}
        self._process = subprocess.Popen(
            command, env=env, cwd=cwd, stdin=its, stdout=its, stderr=its, start_new_session=True
        )
        os.close(its)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def text(self) -> str:
        """All that was written until now."""
        return self._seen.decode(errors="replace")

    def wait_for(self, text: str) -> None:
        """Waits until something was written."""
        while text not in self.text:
            assert self._process.poll() is None, self.text
            time.sleep(0.02)

    def press_ctrl_c(self) -> None:
        """Interrupts the command."""
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Waits for the command's end; its exit code."""
        code = self._process.wait(timeout=40)
        self._reader.join()
        os.close(self._out)
        return code

    def _read(self) -> None:
        try:
            while piece := os.read(self._out, 65_536):
                self._seen += piece
        except OSError:  # how Linux tells that nobody writes any longer
            return


class UserMachine:
    """A machine of one's own: a home, a model server, and commands typed one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, StateDir(folder / ".baton")
        self.model = ScriptedModel(Script.read(SCRIPT).answer)
        self.env: dict[str, str] = {}
        self.released = threading.Event()

    def run(self, *arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Types a command and waits for its end; what it said is shown where the test fails."""
        done = baton(*arguments, env={**self.env, **env}, cwd=self.folder)
        print(f"baton {' '.join(map(str, arguments))}: exit code {done.returncode}\n{done.stderr}", file=sys.stderr)
        return done

    def start(self, *arguments: str | Path) -> "subprocess.Popen[str]":
        """Types a command and doesn't wait."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [BATON, *arguments],
            env=self.env,
            cwd=self.folder,
            text=True,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )

    def terminal(self, *arguments: str | Path) -> Terminal:
        """Types a command on a terminal and doesn't wait."""
        return Terminal([BATON, *arguments], self.env, self.folder)

    def script(self, *lines: ScriptLine) -> None:
        """Gives the model its words; what is to ``hang`` is said once ``released`` is set."""
        script = Script(lines=[*lines])

        def answer(request: Request) -> Reply:
            reply = script.answer(request)
            if reply.hang:
                self.released.wait(60)
            return reply.model_copy(update={"hang": False})

        self.model._answer = answer

    def write(self, *manifests: object, name: str = "team.yaml") -> Path:
        """Writes manifests into a file."""
        file = self.folder / name
        file.write_text(yaml.safe_dump_all(manifests))
        return file

    def dev(self) -> DevServer:
        """The server and worker that run."""
        dev = self.home.read_dev_server()
        assert dev
        return dev

    def wait_for_calls(self, count: int) -> None:
        """Waits until the model has been asked so often."""
        while len(self.model.requests) < count:
            time.sleep(0.01)

    def shut_down(self) -> None:
        """Ends what still runs."""
        self.released.set()
        while dev := self.home.read_dev_server():
            os.kill(dev.pid, signal.SIGTERM)
            time.sleep(0.2)
