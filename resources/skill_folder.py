"""Reads the folder of a Skill: its SKILL.md and all other text files, within limits (Agent Skills: directory)."""

import os
import re
import stat
from pathlib import Path

from pydantic import ValidationError

from .base import JsonObject
from .catalog import Resource
from .documents import Document, parse_documents
from .parse import manifest_error
from .problems import ManifestError, dotted_path, explain_errors
from .skill import Skill, SkillSpec

MAIN = "SKILL.md"
MAX_FILE = 256_000
MAX_BYTES = 1_000_000
MAX_FILES = 200
"""The files of a folder, including binary ones."""

_PARTS = re.compile(r"---[ \t]*\n(.*?)\n---[ \t]*(?:\n(.*))?", re.DOTALL)


def with_folder(manifest: Resource, document: Document) -> Resource:
    """The manifest; a Skill gets the content of its folder, which is relative to the file. Raises ManifestError."""
    if not (isinstance(manifest, Skill) and manifest.spec.folder):
        return manifest
    try:
        name, spec = read_skill(Path(document.file).parent / manifest.spec.folder)
        if name != manifest.name:
            raise ValueError(f"the name in its {MAIN} is '{name}', not '{manifest.name}'")
        return Skill(api_version=manifest.api_version, kind="Skill", metadata=manifest.metadata, spec=spec)
    except ValueError as error:
        raise manifest_error(document, ("spec", "folder"), manifest.id, str(error)) from None


def read_skill(folder: Path) -> tuple[str, SkillSpec]:
    """The name and the content of the skill in a folder. Raises ValueError.

    Files outside the folder are never read, even through links, and nothing is executed.
    """
    try:
        texts = _texts(folder)
    except OSError as error:
        raise ValueError(f"{error.filename} can't be read: {error.strerror}") from None
    if MAIN not in texts:
        raise ValueError(f"{folder} has no file {MAIN}" if folder.is_dir() else f"{folder} is not a folder")
    parts = _PARTS.fullmatch(texts.pop(MAIN))
    front = _front_matter(parts[1], folder / MAIN) if parts else {}
    name = front.get("name")
    description = front.get("description")
    if not (parts and isinstance(name, str) and isinstance(description, str)):
        raise ValueError(f"{folder / MAIN} must begin with '---', name, description, '---'")
    try:
        return name, SkillSpec(description=description, instructions=(parts[2] or "").strip(), files=texts)
    except ValidationError as error:
        path, text = next(explain_errors(error, SkillSpec))
        raise ValueError(f"{folder / MAIN}: {dotted_path(path)}: {text}") from None


def _front_matter(text: str, file: Path) -> JsonObject:
    try:
        (document,) = parse_documents(text, file)
    except (ManifestError, ValueError) as error:
        raise ValueError(f"the front matter of {file} can't be read: {error}") from None
    return document.data if isinstance(document.data, dict) else {}


def _texts(folder: Path) -> dict[str, str]:
    """The UTF-8 texts in a folder and its subfolders, by path, without hidden files."""
    root = folder.resolve()
    texts: dict[str, str] = {}
    size = 0
    count = 0
    for place, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))  # the folders that os.walk enters
        for name in sorted(name for name in names if not name.startswith(".")):
            file = Path(place, name)
            count += 1
            if count > MAX_FILES:
                raise ValueError(f"{folder} has more than {MAX_FILES} files")
            text = _text(file) if file.resolve().is_relative_to(root) else None
            if text is not None:
                texts[file.relative_to(root).as_posix()] = text
                size += len(text.encode())
            if size > MAX_BYTES:
                raise ValueError(f"the texts in {folder} have more than {MAX_BYTES:,} bytes")
    return texts


def _text(file: Path) -> str | None:
    """A file's text; None if it is binary or not a regular file. Raises ValueError if it is too large."""
    if not stat.S_ISREG(file.stat().st_mode):
        return None
    with file.open("rb") as opened:
        data = opened.read(MAX_FILE + 1)
    if b"\0" in data:
        return None
    try:
        text = data.decode("utf-8-sig", errors="strict" if len(data) <= MAX_FILE else "ignore")
    except UnicodeDecodeError:
        return None
    if len(data) > MAX_FILE:
        raise ValueError(f"{file} has more than {MAX_FILE:,} bytes")
    return text.replace("\r\n", "\n")
