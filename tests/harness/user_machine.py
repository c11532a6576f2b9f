"""A user's machine: a state folder, a model server, and the commands that a user types."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import yaml

from baton.starter.server.state_dir import DevServer, StateDir
from baton.testing import Reply, Request, Script, ScriptedModel, ScriptLine
from tests.harness.ports import own_ports
from tests.harness.processes import BATON, PATIENCE, ROOT, baton

SCRIPT = ROOT / "samples" / "scripts" / "brainstorming.yaml"


_WRITTEN = re.compile(r"(\x1b\[[0-9;?]*[A-Za-z]|[\r\n])|([^\x1b\r\n]+)")
"""A control sequence, or text."""


class Terminal:
    """A terminal of 80 columns and 24 lines that runs one command."""

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
        """Everything that was written so far."""
        return self._seen.decode(errors="replace")

    @property
    def screen(self) -> str:
        """What is left of that: a live view erases its lines, and writes them again."""
        lines, row, column = [""], 0, 0
        for control, text in _WRITTEN.findall(self.text):
            if text:
                lines[row] = lines[row][:column] + text + lines[row][column + len(text) :]
                column += len(text)
            elif control == "\r":
                column = 0
            elif control == "\n":
                row += 1
                lines += [""] * (row == len(lines))
            elif control == "\x1b[2K":
                lines[row] = ""
            elif control.endswith("A"):
                row -= int(control[2:-1] or 1)
        return "\n".join(lines)

    def wait_for(self, text: str) -> None:
        """Waits until a text was written."""
        while text not in self.text:
            if self._process.poll() is not None:
                self._reader.join()  # what the command has written right before its end
                assert text in self.text, self.text
                return
            time.sleep(0.02)

    def write(self, line: str) -> None:
        """Types a line."""
        os.write(self._out, f"{line}\r".encode())

    def press_ctrl_d(self) -> None:
        """Ends the input."""
        os.write(self._out, b"\x04")

    def press_ctrl_c(self) -> None:
        """Interrupts the command."""
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Waits for the command's end; its exit code."""
        code = self._process.wait(timeout=PATIENCE)
        self._reader.join()
        os.close(self._out)
        return code

    def _read(self) -> None:
        try:
            while piece := os.read(self._out, 65_536):
                self._seen += piece
        except OSError:  # on Linux: no process has the terminal open any longer
            return


class UserMachine:
    """A user's machine. ``env`` are the environment variables of its commands."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state_dir = folder, StateDir(folder / ".baton")
        self.model = ScriptedModel(Script.read(SCRIPT).answer)
        self.env: dict[str, str] = {}
        self.released = threading.Event()
        self.background: list[subprocess.Popen[bytes]] = []

    def begin(self, folder: Path) -> None:
        """Begins a test that shares the server and worker with those before it, in a folder of its own."""
        self.folder = folder
        time.sleep(0.1)  # what the test before has held is sent: the model looks every 50 ms
        self.released.clear()
        self.model._released.clear()
        self.model.requests.clear()
        self.model._answer = Script.read(SCRIPT).answer

    def choose_ports(self) -> None:
        """Gives the server ports of its own: on the usual ones another machine may begin while it is down."""
        port, ui = own_ports()
        last = {"address": f"127.0.0.1:{port}", "ui": f"http://127.0.0.1:{ui}"}
        self.state_dir.folder.mkdir(parents=True)
        self.state_dir.file("dev.json").write_text(json.dumps(last))

    def run(self, *arguments: str | Path, stdin: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end; its output is shown if the test fails."""
        done = baton(*arguments, env={**self.env, **env}, cwd=self.folder, stdin=stdin)
        print(f"baton {' '.join(map(str, arguments))}: exit code {done.returncode}\n{done.stderr}", file=sys.stderr)
        return done

    def start(self, *arguments: str | Path) -> "subprocess.Popen[str]":
        """Starts a command and does not wait."""
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
        """Starts a command on a terminal and does not wait."""
        return Terminal([BATON, *arguments], self.env, self.folder)

    def script(self, *lines: ScriptLine) -> None:
        """Scripts the model; a reply with ``hang`` is given once ``released`` is set."""
        script = Script(lines=[*lines])

        def answer(request: Request) -> Reply:
            reply = script.answer(request)
            if reply.hang:
                self.released.wait(PATIENCE)
            return reply.model_copy(update={"hang": False})

        self.model._answer = answer

    def write(self, *manifests: object, name: str = "team.yaml") -> Path:
        """Writes manifests into a file."""
        file = self.folder / name
        file.write_text(yaml.safe_dump_all(manifests))
        return file

    def dev(self) -> DevServer:
        """The running server and worker."""
        dev = self.state_dir.read_dev_server()
        assert dev
        return dev

    def kill_dev(self) -> None:
        """Kills the worker's process, and waits for its end: a command may use its server until then."""
        os.kill(self.dev().pid, signal.SIGKILL)
        while self.state_dir.read_dev_server():
            time.sleep(0.01)

    def wait_for_calls(self, count: int) -> None:
        """Waits until the model has got so many requests."""
        while len(self.model.requests) < count:
            time.sleep(0.01)

    def wait_until_listed(self, run: str) -> None:
        """Waits until Temporal lists a run with this id, or with an id that was made from this Query's name."""
        while not any(f"{name}-".startswith(f"{run}-") for name in self.run("list", "-o", "name").stdout.split()):
            time.sleep(0.05)

    def shut_down(self) -> None:
        """Stops what still runs."""
        self.released.set()
        self.model.release()
        while dev := self.state_dir.read_dev_server():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(dev.pid, signal.SIGTERM)
            time.sleep(0.2)
        for process in self.background:
            process.terminate()
            process.wait()
