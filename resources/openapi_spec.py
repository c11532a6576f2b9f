"""The OpenAPI document behind a Tool of ``type: openapi``: where it is, and which of its operations are tools."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from .base import FieldError, JsonModel, Text
from .http_spec import Timeout, timeout_seconds
from .values import Headers, TextOrValue, check_url


def _check_url(text: str) -> str:
    check_url(text)
    return text


Url = Annotated[str, AfterValidator(_check_url)]
"""An HTTP address."""


class OpenApiSpec(JsonModel):
    """An OpenAPI document, 3.0 or 3.1. Each of its operations with an ``operationId`` is a tool."""

    url: Url | None = Field(None, description="the document's address")
    document: TextOrValue | None = Field(None, description="the document itself, as text, or {valueFrom: …}")
    base_url: Url | None = Field(None, description="the address of the operations, if it is not the document's server")
    operations: tuple[Text, ...] = Field(("*",), description="the operationIds that are tools; * stands for any text")
    headers: Headers = Field((), description="headers of each request, also of that for the document")
    timeout: Timeout = Field("30s", description="how long a response may take, such as '30s'")

    @property
    def seconds(self) -> float:
        """The timeout in seconds."""
        return timeout_seconds(self.timeout)

    @model_validator(mode="after")
    def _one_document(self) -> Self:
        if (self.url is None) == (self.document is None):
            raise FieldError(("url",), "needs either url or document")
        return self
