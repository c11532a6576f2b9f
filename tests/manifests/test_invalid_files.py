"""Files that are no manifests: each is read or refused, quickly and with its name."""

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from baton.activities.runtime.secrets import SecretStore
from baton.resources.documents import manifest_files, read_documents
from baton.resources.loader import load_files
from baton.resources.problems import ManifestError
from baton.resources.secret import Secrets
from baton.resources.values import KeyRef
from tests.harness.environment import KEY, agent, team
from tests.harness.manifests import Writer
from tests.harness.processes import baton, process_env

TEAM = "apiVersion: ark.mckinsey.com/v1alpha1\nkind: Team\nmetadata: {name: t}\nspec:\n"
LEVELS = zip("abcdefgh", "bcdefghi", strict=True)
LAUGHS = "a: &a [lol]\n" + "".join(f"{n}: &{n} [{', '.join([f'*{p}'] * 10)}]\n" for p, n in LEVELS)
SQUARE = f"a: &a [{'x, ' * 300}x]\nb: [{'*a, ' * 300}x]\n"
ECHO = f"{TEAM}  description: &a {'x' * 100_000}\n  members: [{'*a, ' * 9_000}*a]\n"
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"

TEXTS: dict[str, tuple[str | bytes, str]] = {
    "billion laughs": (LAUGHS, "is not YAML: too large"),
    "quadratic blow-up": (f"{SQUARE}---\n" * 3, "is not YAML: too large"),
    "a long text, often": (ECHO, "is not YAML: too large"),
    "a long key, often": (f"a: &a {{? {'x' * 100_000} : 1}}\nb: [{'*a, ' * 9_000}*a]\n", "is not YAML: too large"),
    "4 MB of documents": ("--- 1\n" * 600_000, "is not YAML: more than 100,000 values"),
    "4 MB of keys": ("".join(f"k{n}: \n" for n in range(400_000)), "is not YAML: more than 100,000 values"),
    "10 MB": (b"# \n" * 3_500_000, "is larger than 4 MB"),
    "a picture": (PNG, "is not UTF-8 text"),
    "nothing but NUL": (b"\0" * 100, "is not YAML: unacceptable character"),
    "UTF-16": ("kind: Agent".encode("utf-16"), "is not UTF-8 text"),
    "UTF-16 without a mark": ("kind: Agent".encode("utf-16-le"), "is not YAML: unacceptable character"),
    "Latin-1": ("kind: café".encode("latin-1"), "is not UTF-8 text"),
    "an alias of itself": ("a: &a [*a]", "an alias that contains itself"),
    "10,000 brackets": ("[" * 10_000, "is not YAML: nested deeper than 64"),
    "10,000 brackets, closed": ("[" * 10_000 + "]" * 10_000, "is not YAML: nested deeper than 64"),
    "a key twice": ("kind: Agent\nkind: Team", ":2: is not YAML: the key 'kind' appears twice"),
    "a line of 1 MB": ("x" * 1_000_000, "is not a manifest"),
    "a word of 1 MB": (f"{TEAM}  strategy: {'x' * 1_000_000}", "spec.strategy: 'xxx"),
    "a kind of 1 MB": (TEAM.replace("Team", "x" * 1_000_000), "…: kind: 'xxx"),
    "a control character": (TEAM + "  description: \a", "is not YAML: unacceptable character #x0007"),
    "an escape sequence": (TEAM + '  strategy: "\\e[31mred\\n"', r"spec.strategy: '\x1b[31mred\n' is unknown"),
    "empty": ("", "contains no manifest"),
    "only a comment": ("# Later.\n---\n", "contains no manifest"),
    "NaN": (
        '{"apiVersion": "ark.mckinsey.com/v1alpha1", "kind": "Team", "spec": {"maxTurns": NaN}}',
        "maxTurns: is text",
    ),
    "Infinity": ("a: 1e999", "not a number in JSON"),
    "a tagged infinity": ("a: !!float .inf", "not a number in JSON"),
    "code": ("a: !!python/object/apply:os.system [ls]", "the tag tag:yaml.org,2002:python/object/apply:os.system"),
    "code, as a mapping": ("!!python/object:os.system {a: b}", "the tag tag:yaml.org,2002:python/object:os.system"),
    "a set": ("a: !!set {b, c}", "the tag tag:yaml.org,2002:set is not known"),
    "a merge of text": ("a: {<<: text}", "'<<' merges mappings only"),
    "octal": (TEAM + "  maxTurns: 0o17", "spec.maxTurns: is text, must be a whole number"),
    "yes": (TEAM + "  loops: yes", "spec.loops: is text, must be true or false"),
    "a number as text": (TEAM + "  description: 5", "spec.description: is a number, must be text"),
    "5,000 digits": (TEAM + f"  maxTurns: {'1' * 5_000}", "does not fit its tag"),
    "a key that is a list": ("? [a]\n: b", "a key must be text"),
    "a key that is a number": (TEAM + "  5: x", "spec.5: is not a field of Team"),
    "one broken document": (f"{TEAM}---\na: [\n---\n{TEAM}", ":7: is not YAML"),
    "a List of Lists": (
        "kind: List\nitems: [{kind: List, items: [{apiVersion: v1, kind: Secret}]}]",
        "metadata: is mis",
    ),
    "a line too far to the left": (
        "kind: Team\nmetadata:\n  name: t\n spec: {}\n",
        "indentation doesn't match the lines above",
    ),
    "a line too far to the right": ("kind: Team\n  spec: {}\n", "an unexpected colon: check the indentation"),
    "a key without a colon": ("kind: Team\nmetadata\nspec: {}\n", "a key without a colon"),
    "a tab": ("kind: Team\nspec:\n\tmaxTurns: 3\n", "a character that can't begin a value: use spaces"),
    "a field beside the spec": (TEAM.replace("spec:", "maxTurns: 3"), "maxTurns: is a field of 'spec': indent it"),
    "90,000 mistakes": (f"{TEAM}  members: [{'1, ' * 90_000}1]", "… and 89902 more"),
}


@pytest.mark.full
@pytest.mark.parametrize(("content", "says"), TEXTS.values(), ids=TEXTS)
def test_a_file_without_a_manifest_is_refused_quickly_with_its_name(
    tmp_path: Path, content: str | bytes, says: str
) -> None:
    file = tmp_path / "m.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    begin = time.process_time()
    with pytest.raises(ManifestError) as error:
        load_files([file])
    assert time.process_time() - begin < 20, "a loader whose time grows with the square of the mistakes takes minutes"
    said = str(error.value)
    assert said.startswith(str(file))
    assert says in said
    assert len(said) < 20_000
    assert all(line.isprintable() for line in said.splitlines())


def _gone(file: Path) -> Path:
    return file


def _dangling(file: Path) -> Path:
    file.symlink_to("nowhere")
    return file


def _circle(file: Path) -> Path:
    file.symlink_to(file)
    return file


def _pipe(file: Path) -> Path:
    os.mkfifo(file)
    return file


def _device(file: Path) -> Path:
    file.symlink_to("/dev/zero")
    return file


def _long_name(file: Path) -> Path:
    return file.with_name("x" * 5_000)


def _bomb(file: Path) -> Path:
    file.write_text(LAUGHS)
    return file


def _picture(file: Path) -> Path:
    file.write_bytes(PNG)
    return file


def _strange_name(file: Path) -> Path:
    strange = file.with_name(os.fsdecode(b"\xff\x1b[31m.yaml"))
    strange.write_text("a: [")
    return strange


STRANGE: dict[Callable[[Path], Path], str] = {
    _gone: "can't be read: No such file or directory",
    _dangling: "can't be read: No such file or directory",
    _circle: "can't be read: Too many levels of symbolic links",
    _pipe: "is not a regular file",
    _device: "is not a regular file",
    _long_name: "can't be read: File name too long",
    _bomb: ":1: is not YAML: too large",
    _picture: "is not UTF-8 text",
    _strange_name: r"\udcff\x1b[31m.yaml:2: is not YAML",
}


@pytest.mark.parametrize(("make", "says"), STRANGE.items(), ids=[make.__name__.strip("_") for make in STRANGE])
def test_a_file_that_is_not_text_ends_a_command_with_one_sentence(
    tmp_path: Path, make: Callable[[Path], Path], says: str
) -> None:
    file = make(tmp_path / "m.yaml")
    begin = time.monotonic()
    done = baton("validate", "-f", file, env=process_env())
    assert time.monotonic() - begin < 20
    assert (done.returncode, done.stdout) == (1, "")
    first, count = done.stderr.splitlines()
    assert first.startswith(str(tmp_path))
    assert says in first
    assert count == "1 problem"


@pytest.mark.parametrize("make", [_dangling, _pipe, _device], ids=["dangling", "pipe", "device"])
def test_a_file_that_is_not_text_is_reported_inside_a_folder_too(write: Writer, make: Callable[[Path], Path]) -> None:
    write.file(agent("a"), name="a.yaml")
    file = make(write.folder / "m.yaml")
    with pytest.raises(ManifestError) as error:
        load_files([write.folder])
    assert [problem.file for problem in error.value.problems] == [str(file)]


def test_an_empty_file_among_others_and_an_empty_folder_are_no_errors(write: Writer) -> None:
    assert not load_files([write.folder]).catalog.manifests
    write.file(agent("a"), name="a.yaml")
    write.file(text="# Later.", name="b.yaml")
    assert len(load_files([write.folder]).catalog.manifests) == 1


def test_hidden_files_and_folders_are_not_read(write: Writer) -> None:
    (write.folder / ".hidden").mkdir()
    write.file(text="a: [", name=".hidden/a.yaml")
    write.file(text="a: [", name=".a.yaml")
    assert manifest_files(write.folder, recursive=True) == []


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Acts as the user ``nobody`` for a moment, because root can read everything."""
    user = os.geteuid()
    os.seteuid(65534 if user == 0 else user)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("inner", ["", "deep", "deep/est"])
def test_a_folder_that_can_not_be_listed_is_reported(inner: str) -> None:
    top = Path(tempfile.mkdtemp())
    locked = top / inner
    locked.mkdir(parents=True, exist_ok=True)
    top.chmod(0o755)
    locked.chmod(0)
    try:
        with as_nobody(), pytest.raises(ManifestError) as error:
            load_files([top], recursive=True)
        assert str(error.value) == f"{locked}: is a folder that can't be listed"
        with as_nobody(), pytest.raises(ManifestError, match="can't be read: Permission denied"):
            load_files([locked / "m.yaml"])
    finally:
        locked.chmod(0o755)
        shutil.rmtree(top)


def test_a_file_that_disappears_between_listing_and_reading_is_reported(write: Writer) -> None:
    (file,) = manifest_files(write.file(agent("a")).parent, recursive=False)
    file.unlink()
    with pytest.raises(ManifestError, match=r"m\.yaml: can't be read: No such file"):
        read_documents(file)


def test_a_dangling_link_next_to_a_secret_fails_no_run(write: Writer) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"token": KEY}}
    write.file(secret)
    _dangling(write.folder / "n.yaml")
    sources = write.folder / ".sources"
    sources.mkdir()
    (sources / "abc.json").write_text(json.dumps([str(write.folder)]))
    store = SecretStore(Secrets(), {}, sources)
    assert store.read(asyncio.run(store.of_run("abc")), "default", KeyRef(name="s", key="token")) == KEY


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_utf_8_is_read_with_and_without_a_byte_order_mark(write: Writer, encoding: str) -> None:
    file = write.file(text="")
    file.write_bytes(f"{TEAM}  description: café ☕\n  strategy: sequential\n  members: [name: a]".encode(encoding))
    assert "café ☕" in load_files([file]).catalog.canonical


def test_dates_and_yaml_1_1_booleans_stay_text(write: Writer) -> None:
    text = "data: {a: 2025-09-03, b: yes, c: on, d: 0o17, e: 017, f: 1_000, g: 0x1F, h: 12:30:00, i: NaN, j: .inf}\n"
    document = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\n{text}"
    assert '"b":"yes","c":"on","d":"0o17","e":"017"' in write.load(text=document).catalog.canonical


def test_a_text_of_a_megabyte_is_read(write: Writer) -> None:
    assert len(write.load(team("t", "a", maxTurns=1, description="x " * 500_000)).catalog.canonical) > 1_000_000


def test_a_surrogate_pair_in_json_is_read_as_one_character(tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    file.write_text(json.dumps({"a": "hi 😀!", "b": "\\ud83d\\ude00"}))
    assert "\\ud83d" in file.read_text()
    assert read_documents(file)[0].data == {"a": "hi 😀!", "b": "\\ud83d\\ude00"}
