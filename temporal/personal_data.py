"""Personal data is replaced before it is stored: in the journal, in histories, in the log and in traces.

What is stored passes through one of a few places, each of which applies the hook of BATON_REDACT: Baton's clients, to
what they send to Temporal (``RedactInputs``); the journal, to the messages that it writes, which activities return; and
on a worker the errors of activities and the contents of spans. A text may pass through several of them.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from typing import TYPE_CHECKING, Any

from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    SignalWorkflowInput,
    StartWorkflowInput,
    StartWorkflowUpdateInput,
    WorkflowHandle,
    WorkflowUpdateHandle,
)

from ..contracts.settings import REDACT, SettingsError
from .bounded_process import BoundedFunction, EvaluationFailed, LimitExceeded

if TYPE_CHECKING:
    from ..contracts.message import Message
    from ..contracts.trace import SpanData
    from ..resources.run_catalog import RunCatalog

# Functions import what loads types of Baton, as in client.py: every command loads this module.

SECONDS = 10.0
"""How long the hook may take for the texts of one message."""

MAX_BYTES = 50_000_000
"""Bytes of the texts of one message, as JSON."""

WITHHELD = "[withheld: personal data could not be redacted]"
"""Stands for the text of an error, or the content of a span, for which the hook has failed."""


class PersonalData:
    """The hook of BATON_REDACT, which runs in processes of its own."""

    def __init__(self, hook: str, environment: Mapping[str, str]) -> None:
        self._process = BoundedFunction(
            f"{__package__}.redact_process:redact_texts",  # not imported here: it loads the hook, for its process alone
            seconds=SECONDS,
            max_result=MAX_BYTES,
            environment={**environment, REDACT: hook},
        )

    async def check(self) -> None:
        """Raises SettingsError if the hook can't be loaded, or fails for a simple text."""
        try:
            await self._process.call(["text"])
        except (EvaluationFailed, ValueError) as error:
            raise SettingsError(f"{REDACT}: {error}") from None

    async def close(self) -> None:
        """Ends the hook's idle processes."""
        await self._process.close()

    async def texts(self, texts: Sequence[str]) -> list[str]:
        """The texts without personal data, in one call. Raises NotRedacted if the hook fails or takes too long."""
        from ..contracts.errors import NotRedacted  # noqa: PLC0415

        if not any(texts):
            return [*texts]
        for attempt in range(2):
            try:
                clean = await self._process.call([*texts])
            except LimitExceeded:
                raise NotRedacted(
                    f"nothing was stored: {REDACT} took longer than {SECONDS:g} s, or was killed"
                ) from None
            except EvaluationFailed:  # such as a process that was killed while it was idle
                if attempt:
                    raise NotRedacted(f"nothing was stored: the process of {REDACT} has ended") from None
                continue
            except ValueError as error:  # its type alone
                raise NotRedacted(f"nothing was stored: {REDACT} failed with {error}") from None
            if isinstance(clean, list) and len(clean) == len(texts):
                return [str(text) for text in clean]
        raise NotRedacted(f"nothing was stored: {REDACT} failed")

    async def text(self, text: str) -> str:
        """One text without personal data. Raises NotRedacted."""
        return (await self.texts([text]))[0]

    async def shown(self, text: str) -> str:
        """The same for an error or a span: WITHHELD if the hook fails."""
        from ..contracts.errors import NotRedacted  # noqa: PLC0415

        try:
            return await self.text(text)
        except NotRedacted:
            return WITHHELD

    async def messages(self, messages: "Sequence[Message]") -> "list[Message]":
        """Messages as they are stored. Raises NotRedacted."""
        places = [place for message in messages for place in _texts_of(message)]
        clean = iter(await self.texts(places))
        return [_with_texts(message, clean) for message in messages]

    async def fields(self, value: object, paths: "Paths") -> object:
        """A JSON value, or a model of one, with the texts and numbers at these paths redacted. Raises NotRedacted."""
        from ..resources.base import JsonModel  # noqa: PLC0415

        plain = value.model_dump(mode="json", exclude_unset=True) if isinstance(value, JsonModel) else deepcopy(value)
        places = [place for path in paths for place in _places(plain, path)]
        self.check_attached(sum(_is_file(place) for place in places))
        known = [_text_at(place) for place in places]
        for (parent, key), text, clean in zip(places, known, await self.texts(known), strict=True):
            if clean != text:
                parent[key] = clean
        return type(value).model_validate(plain) if isinstance(value, JsonModel) else plain

    async def start(self, run_input: object) -> object:
        """The input of a run, with what a user has written redacted. Raises NotRedacted.

        It says so in ``redacted``: a worker without a hook then refuses the run.
        """
        from ..resources.base import JsonModel  # noqa: PLC0415

        clean = await self.fields(run_input, [*STARTS, *_query_paths(run_input)])
        if isinstance(clean, JsonModel):
            return clean.model_copy(update={"redacted": True})
        return {**clean, "redacted": True} if isinstance(clean, dict) else clean

    async def catalog(self, catalog: "RunCatalog") -> "RunCatalog":
        """The manifests of a run, with redacted Queries. Raises NotRedacted."""
        from ..resources.query import Query  # noqa: PLC0415

        paths = [("spec", *path) for path in _INPUT]
        manifests = [
            Query.model_validate(await self.fields(manifest, paths)) if isinstance(manifest, Query) else manifest
            for manifest in catalog.manifests
        ]
        return catalog.with_manifests(manifests) if manifests != [*catalog.manifests] else catalog

    def check_attached(self, files: int) -> None:
        """Raises NotRedacted if there are images or files to store: a hook redacts only texts."""
        from ..contracts.errors import NotRedacted  # noqa: PLC0415

        if files:
            text = f"nothing was stored: {REDACT} is set, and images and files can't be redacted"
            raise NotRedacted(text, has_files=True)

    async def span(self, span: "SpanData") -> "SpanData":
        """A span whose message and contents are redacted."""
        contents = {name: value for name, value in span.attributes.items() if name in CONTENTS}
        if not (span.message or contents):
            return span
        message = await self.shown(span.message)
        changed = {name: await self.shown(str(value)) for name, value in contents.items()}
        return span.model_copy(update={"message": message, "attributes": {**span.attributes, **changed}})


Path = tuple[str, ...]
"""The keys to a value in JSON. ``*`` stands for every item of a list, and ``**`` for all texts and numbers below."""

Paths = Sequence[Path]

_INPUT = (("input", "**"), ("parameters", "*", "value"))
"""What a user has written in the ``spec`` of a Query."""

STARTS: Paths = (
    ("input",),
    *(("spec", *path) for path in _INPUT),
    ("session", "**"),
    ("forks", "fork", "say", "text"),
    ("forks", "changes", "**"),
)
"""What a user has written in the input of a run, besides the Queries among its manifests."""

MESSAGES: Mapping[str, Paths] = {
    "steer": [("text",)],
    "session": [("**",)],
    "terminate_team": [("reason",)],
    "cancel": [("reason",)],
    "approve": [("reason",), ("arguments", "**")],
    "reply": [("text",)],
    "give_result": [("output",)],
    "pause": [],
    "resume": [],
}
"""What a person has written in a signal or an update. Names of people stay: they say who has decided."""

CONTENTS = frozenset(
    {
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.system_instructions",
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
    }
)
"""The attributes of spans that have contents of messages, where OpenTelemetry's setting asks for them."""


def _places(value: Any, path: Path) -> Iterator[tuple[Any, Any]]:
    """The containers and keys of the texts and numbers at a path."""
    key, *rest = path
    if key == "**":
        if isinstance(value, dict | list):
            for name in value if isinstance(value, dict) else range(len(value)):
                yield from _below(value, name)
    elif key == "*":
        for item in value if isinstance(value, list) else ():
            yield from _places(item, tuple(rest))
    elif isinstance(value, list) and key.isdecimal():
        yield from _places(value[int(key)], tuple(rest))
    elif isinstance(value, dict) and key in value:
        if not rest or rest == ["**"]:
            yield from _below(value, key)
        else:
            yield from _places(value[key], tuple(rest))


def _below(parent: Any, key: Any) -> Iterator[tuple[Any, Any]]:
    """The texts and numbers at a key and below it, except the media types and roles of messages."""
    value = parent[key]
    if isinstance(value, dict | list):
        for name in value if isinstance(value, dict) else range(len(value)):
            if name not in ("role", "type"):
                yield from _below(value, name)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield parent, key


def _text_at(place: tuple[Any, Any]) -> str:
    parent, key = place
    return parent[key] if isinstance(parent[key], str) else json.dumps(parent[key])


def _is_file(place: tuple[Any, Any]) -> bool:
    """Whether a text is the content of an image or a file."""
    return place[1] == "file_data" or _DATA_URL.match(_text_at(place)) is not None


_DATA_URL = re.compile(r"data:[^,\s]{1,200};base64,")


def _texts_of(message: "Message") -> Iterator[str]:
    """The texts of a message, in the order in which ``_with_texts`` reads them."""
    place = 0
    for blank in message.blanks:
        yield message.content[place : blank.at]
        place = blank.at + blank.length
    yield message.content[place:]
    for call in message.tool_calls:
        yield call.arguments
        yield call.extra.content if call.extra else ""
    yield message.reasoning.content if message.reasoning else ""
    for text in _decided(message):
        yield text or ""


def _decided(message: "Message") -> tuple[str | None, ...]:
    decision = message.decision
    return (decision.reason, decision.arguments, decision.text) if decision else ()


def _with_texts(message: "Message", clean: Iterator[str]) -> "Message":
    """The message with redacted texts. What only its server may change is left out if it had personal data."""
    changed: dict[str, object] = {}
    content = ""
    blanks = []
    for blank in message.blanks:  # the placeholders of secrets stay where they are
        content += next(clean)
        blanks.append(blank.model_copy(update={"at": len(content)}))
        content += message.content[blank.at : blank.at + blank.length]
    content += next(clean)
    if content != message.content:
        changed |= {"content": content, "blanks": tuple(blanks)}
    calls = []
    for call in message.tool_calls:
        arguments = next(clean)
        extra = next(clean)
        kept = call.extra if call.extra and extra == call.extra.content else None
        calls.append(call.model_copy(update={"arguments": arguments, "extra": kept}))
    if tuple(calls) != message.tool_calls:
        changed["tool_calls"] = tuple(calls)
    reasoning = next(clean)
    if message.reasoning and reasoning != message.reasoning.content:
        changed["reasoning"] = None
    if message.decision:
        reason, arguments, text = (next(clean) for _ in range(3))
        decided = {"reason": reason, "arguments": arguments or None, "text": message.decision.text and text}
        if tuple(decided.values()) != _decided(message):
            changed["decision"] = message.decision.model_copy(update=decided)
    return message.model_copy(update=changed) if changed else message


class RedactInputs(Interceptor):
    """Redacts what a client sends to runs of Baton: inputs, summaries, signals and updates."""

    def __init__(self, personal_data: PersonalData) -> None:
        self.personal_data = personal_data

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - as the SDK calls it
        """The calls of a client, without personal data."""
        return _RedactedCalls(next, self.personal_data)


def personal_data_in(client: Client) -> PersonalData | None:
    """The hook of a client, for what it sends to Temporal by itself; None without one."""
    interceptors = client.config(active_config=True)["interceptors"]
    return next((each.personal_data for each in interceptors if isinstance(each, RedactInputs)), None)


class _RedactedCalls(OutboundInterceptor):
    def __init__(self, following: OutboundInterceptor, personal_data: PersonalData) -> None:
        super().__init__(following)
        self._personal_data = personal_data

    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:  # noqa: A002 - as the SDK
        from ..resources.strategies import RUN_TYPES  # noqa: PLC0415

        if input.workflow in RUN_TYPES:
            input.args = [await self._personal_data.start(argument) for argument in input.args]
            if input.static_summary:
                input.static_summary = await self._personal_data.text(input.static_summary)
        return await super().start_workflow(input)

    async def signal_workflow(self, input: SignalWorkflowInput) -> None:  # noqa: A002 - as the SDK calls it
        input.args = await self._message(input.signal, input.args)
        await super().signal_workflow(input)

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> WorkflowUpdateHandle[Any]:  # noqa: A002
        input.args = await self._message(input.update, input.args)
        return await super().start_workflow_update(input)

    async def _message(self, name: str, arguments: Sequence[Any]) -> Sequence[Any]:
        if not (paths := MESSAGES.get(name)):
            return arguments
        return [
            await self._personal_data.text(value)
            if isinstance(value, str)
            else await self._personal_data.fields(value, paths)
            for value in arguments
        ]


def _query_paths(run_input: object) -> Iterator[Path]:
    """What a user has written in the Queries among the manifests of a run's input."""
    resources = run_input.get("resources", ()) if isinstance(run_input, dict) else getattr(run_input, "resources", ())
    for index, manifest in enumerate(resources if isinstance(resources, list | tuple) else ()):
        if isinstance(manifest, dict) and manifest.get("kind") == "Query":
            yield from (("resources", str(index), "spec", *path) for path in _INPUT)


RedactHook = Callable[[str], str] | Mapping[str, str]
"""A hook in Python: a function of a module, which another process can import, or patterns by name."""


def redact_setting(hook: RedactHook) -> dict[str, str]:
    """The setting that names a hook. Raises ValueError for a function that another process can't import."""
    if isinstance(hook, Mapping):
        return {REDACT: json.dumps({**hook})}
    module = getattr(hook, "__module__", None)
    name = getattr(hook, "__qualname__", "<locals>")
    if module in (None, "__main__") or "<" in name:
        raise ValueError("redact: pass a function that is defined in a module: it is called in a process of its own")
    return {REDACT: f"{module}:{name}"}


def personal_data_of(environment: Mapping[str, str]) -> PersonalData | None:
    """The hook that the environment names; None if it names none. It is the same one for the same environment."""
    hook = environment.get(REDACT, "")
    return _hook(hook, tuple(sorted(environment.items()))) if hook else None


@cache
def _hook(hook: str, environment: tuple[tuple[str, str], ...]) -> PersonalData:
    return PersonalData(hook, dict(environment))
