"""What a request of OpenAI's protocols chooses: tools of the client, settings of the agent, the format of the answer.

Many clients send settings that nobody has chosen. So a setting that the target does not let clients choose, or that
its model can't take, is ignored, and the response names it. What the client could not do without is refused: its tools,
and the format of the answer.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue, ValidationError
from pydantic.alias_generators import to_camel, to_snake

from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.catalog import Catalog
from ...resources.client import API_DEFAULTS, ClientAccess, ClientSettings, ClientTool
from ...resources.problems import explain_errors
from ...resources.validation import unsupported_by_models
from .errors import BadRequestError
from .openai_input import ChatRequest, ResponseRequest
from .targets import ServedTarget

IGNORED_HEADER = "x-baton-ignored"
"""The response header with the parameters of the request that have no effect."""

CHAT_SETTINGS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "stop": "stop",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "reasoning_effort": "reasoning_effort",
}
"""The settings of a TargetQuestion, by the parameters of a chat."""

RESPONSE_SETTINGS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "max_output_tokens": "max_tokens",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "reasoning.effort": "reasoning_effort",
}
"""The same, by the parameters of a response; a dot leads into an object."""

UNSUPPORTED = ("logit_bias", "logprobs", "top_logprobs", "verbosity", "text.verbosity", "max_tool_calls")
"""Parameters of the model that no manifest can allow."""


@dataclass(frozen=True)
class Choices:
    """What the target takes of a request's choices; ``ignored`` are the parameters that have no effect."""

    tools: list[ClientTool]
    settings: JsonObject
    ignored: tuple[str, ...]
    format: JsonObject
    """The format of the answer, in the form of a response."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the response that say what was ignored."""
        return ignored_headers(self.ignored)


def ignored_headers(ignored: Sequence[str]) -> dict[str, str]:
    """The header that names the ignored parameters, if there are any."""
    return {IGNORED_HEADER: ", ".join(ignored)} if ignored else {}


def chat_choices(body: ChatRequest, target: ServedTarget, catalog: Catalog) -> Choices:
    """The choices of a chat. Raises BadRequestError for what the target can't do, naming the parameter."""
    form = body.response_format or {}
    if form.get("type") == "json_schema":
        described = form.get("json_schema")
        form = {**(described if isinstance(described, dict) else {}), "type": "json_schema"}
    sent: JsonObject = {**(body.model_extra or {})}
    chooser = _Chooser(target, catalog, format="response_format", schema="response_format.json_schema.schema")
    return chooser.choices(body, sent, CHAT_SETTINGS, form)


def response_choices(body: ResponseRequest, target: ServedTarget, catalog: Catalog) -> Choices:
    """The choices of a response. Raises BadRequestError for what the target can't do, naming the parameter."""
    form = (body.text or {}).get("format")
    sent: JsonObject = {**(body.model_extra or {}), "reasoning": body.reasoning, "text": body.text}
    chooser = _Chooser(target, catalog, format="text.format", schema="text.format.schema")
    return chooser.choices(body, sent, RESPONSE_SETTINGS, form if isinstance(form, dict) else {})


@dataclass
class _Chooser:
    """Finds what a target takes of a request. ``format`` and ``schema`` are parameters: the format, and its schema."""

    target: ServedTarget
    catalog: Catalog
    format: str
    schema: str
    settings: JsonObject = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    """The parameters of the settings."""

    ignored: list[str] = field(default_factory=list)

    def choices(
        self, body: ChatRequest | ResponseRequest, sent: JsonObject, known: Mapping[str, str], form: JsonObject
    ) -> Choices:
        """The choices of a request with these parameters, of which ``known`` are settings. Raises BadRequestError."""
        self.ignored += [parameter for parameter in UNSUPPORTED if _at(sent, parameter)]
        for parameter, setting in known.items():
            self._choose(parameter, setting, _at(sent, parameter))
        tools = client_tools(body.tools) if body.tool_choice != "none" else []
        if tools:
            self.settings["tool_choice"] = body.tool_choice
            self.settings["parallel_tool_calls"] = body.parallel_tool_calls
        elif body.tool_choice not in (None, "auto", "none"):
            raise BadRequestError("tool_choice: the request has no tools", param="tool_choice")
        if schema := self._new_schema(form):
            self.settings["output_schema"] = schema
            self.parameters["output_schema"] = self.schema
        self._drop_unsupported(self._checked())
        return Choices(
            tools=tools,
            settings=self.settings,
            ignored=tuple(sorted(self.ignored)),
            format=_shown_format(form),
        )

    @property
    def _access(self) -> ClientAccess:
        agent = self.target.manifest
        return agent.client_access if isinstance(agent, Agent) else ClientAccess()

    @property
    def _refuses(self) -> bool:
        """Whether the manifest says that a setting is refused rather than ignored."""
        return self._access.on_other_settings == "refuse"

    def _choose(self, parameter: str, setting: str, value: JsonValue) -> None:
        name = to_camel(setting)
        if value is None:
            return
        if name in self._access.allowed_settings:
            self.settings[setting] = [value] if setting == "stop" and isinstance(value, str) else value
            self.parameters[setting] = parameter
        elif self._refuses and API_DEFAULTS.get(name, ...) != value:
            text = f"{parameter}: {self.target.id} does not let clients choose this"
            raise BadRequestError(text, param=parameter)
        else:
            self.ignored.append(parameter)

    def _new_schema(self, form: JsonObject) -> JsonObject | None:
        """The JSON Schema that the client chooses for the answer; None for a text, or if it is the target's own."""
        own = self.target.output_schema
        match form.get("type"):
            case None | "text":
                return None
            case "json_object":
                schema: JsonValue = {"type": "object"}
                is_own = own is not None and own.get("type") == "object"
            case "json_schema":
                schema = form.get("schema")
                is_own = schema == own
            case other:
                text = f"{self.format}.type: '{str(other)[:100]}' is not supported"
                raise BadRequestError(text, param=f"{self.format}.type")
        if not isinstance(schema, dict):
            raise BadRequestError(f"{self.schema}: it has to be a JSON Schema", param=self.schema)
        if is_own:
            return None
        if "outputSchema" in self._access.allowed_settings:
            return schema
        has = "another schema" if own else "no schema"
        text = f"{self.format}: {self.target.id} has {has} for its answers, and does not let clients choose one"
        raise BadRequestError(text, param=self.format)

    def _checked(self) -> ClientSettings:
        """The settings. Raises BadRequestError for an invalid one, by the name that its parameter has."""
        try:
            return ClientSettings.model_validate(
                {name: value for name, value in self.settings.items() if value is not None}
            )
        except ValidationError as error:
            path, reason = next(explain_errors(error, ClientSettings))
            setting = to_snake(str(path[0])) if path else ""
            parameter = self.parameters.get(setting, setting)
            raise BadRequestError(f"{parameter}: {reason}", param=parameter or None) from None

    def _drop_unsupported(self, chosen: ClientSettings) -> None:
        """Ignores the settings that the model of the agent, or a fallback, can't take."""
        agent = self.target.manifest
        if not isinstance(agent, Agent):
            return
        for name, reason in unsupported_by_models(agent.with_client_settings(chosen), self.catalog):
            setting = to_snake(name)
            if setting not in self.settings:  # it is the manifest's own, or was dropped for another model
                continue
            parameter = self.parameters[setting]
            if self._refuses:
                raise BadRequestError(f"{parameter}: {reason}", param=parameter)
            self.ignored.append(parameter)
            del self.settings[setting]


def _at(value: JsonObject, place: str) -> JsonValue:
    """The value at a place such as ``reasoning.effort``; None if there is none."""
    found: JsonValue = value
    for name in place.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def client_tools(tools: Sequence[JsonObject] | None) -> list[ClientTool]:
    """The tools of a request of either protocol. Raises BadRequestError for others than functions."""
    converted = []
    for index, tool in enumerate(tools or ()):
        place = f"tools.{index}"
        if tool.get("type") != "function":
            raise BadRequestError(f"{place}.type: only functions are supported", param=f"{place}.type")
        function = tool.get("function", tool)  # in a chat the function is an object in the tool
        if not isinstance(function, dict):
            raise BadRequestError(f"{place}.function: it has to be an object", param=f"{place}.function")
        fields = {name: function.get(name) for name in ("name", "description", "parameters")}
        given = {name: value for name, value in fields.items() if value is not None}
        try:
            converted.append(ClientTool.model_validate(given))
        except ValidationError as error:
            path, reason = next(explain_errors(error, ClientTool))
            wrong = ".".join(map(str, (place, *path)))
            raise BadRequestError(f"{wrong}: {reason}", param=wrong) from None
    return converted


def _shown_format(form: JsonObject) -> JsonObject:
    """A format as a response has it: with the fields and the types that clients require."""
    if form.get("type") != "json_schema":
        return {"type": form.get("type") or "text"}
    description = form.get("description")
    return {
        "type": "json_schema",
        "name": str(form.get("name", ""))[:64],
        "description": description if isinstance(description, str) else None,
        "schema": form["schema"],
        "strict": form.get("strict") is True,
    }


def echoed(choices: Choices, limit: int) -> JsonObject:
    """The choices that have an effect, as a response repeats them; a format of at most ``limit`` characters."""
    settings = choices.settings
    form = choices.format
    if len(json.dumps(form)) > limit:
        form = {**form, "description": None, "schema": {}}
    return {
        "temperature": settings.get("temperature"),
        "top_p": settings.get("top_p"),
        "frequency_penalty": settings.get("frequency_penalty"),
        "presence_penalty": settings.get("presence_penalty"),
        "max_output_tokens": settings.get("max_tokens"),
        "reasoning": {"effort": settings.get("reasoning_effort"), "summary": None},
        "text": {"format": form},
    }
