"""The HTTP request of a Tool, and the places for arguments in its address (ARK: queries, tool execution)."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from .base import JsonModel, Pattern
from .duration import parse_duration
from .template import names_in, with_places_as
from .values import Headers, Parameter, check_url

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]

_SPELLED = Pattern(r"0*[1-9][0-9]{0,6}[smh]?", "is not a timeout: write '30s', '5m' or '30' for seconds")
ARGUMENT = re.compile(r"\{([A-Za-z_][\w.-]*)\}")
"""An argument of the tool call, in a URL without its ``{{parameter}}`` placeholders."""


def arguments_in(template: str) -> list[str]:
    """The arguments ``{argument}`` in a URL; a ``{{parameter}}`` is not one."""
    return ARGUMENT.findall(with_places_as("", template))


def timeout_seconds(timeout: str) -> float:
    """The seconds of a timeout, which is a duration or a number of seconds; raises ValueError."""
    return parse_duration(f"{timeout}s" if timeout.isdecimal() else timeout).total_seconds()


def _check_timeout(text: str) -> str:
    timeout_seconds(_SPELLED.check(text))
    return text


Timeout = Annotated[str, _SPELLED, AfterValidator(_check_timeout)]


def _check_template(text: str) -> str:
    names_in(text)
    return text


def _check_address(text: str) -> str:
    begun = with_places_as("http://x", text, count=1) if _check_template(text).startswith("{{") else text
    check_url(ARGUMENT.sub("x", with_places_as("x", begun)))
    return text


class HttpSpec(JsonModel):
    """An HTTP request.

    ``{name}`` in the URL is an argument of the tool call, ``{{name}}`` a parameter, ``{{input.name}}`` in the body an
    argument. A parameter at the start of the URL is the base address.
    """

    url: Annotated[str, AfterValidator(_check_address)] = Field(description="the address, with http:// or https://")
    method: Method = Field("GET", description="the request's method")
    headers: Headers = Field((), description="headers of the request")
    timeout: Timeout = Field("30s", description="how long a response may take, such as '30s'")
    body: Annotated[str, AfterValidator(_check_template)] | None = Field(None, description="the body's template")
    body_parameters: tuple[Parameter, ...] = Field((), description="values for the body's template")

    @property
    def seconds(self) -> float:
        """The timeout in seconds."""
        return timeout_seconds(self.timeout)
