"""``kind: ArkConfig``: defaults for all queries, under the name ``default`` (ARK: today's dialect)."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from .base import NOT_SUPPORTED_YET, Duration, JsonModel, NoEffect
from .manifest import Manifest


class ArkConfigSpec(JsonModel):
    """The ``spec`` of an ArkConfig."""

    query_ttl: Duration | None = Field(None, alias="queryTTL", description="the ttl of queries without one: '720h'")
    default_memory: Annotated[JsonValue, NOT_SUPPORTED_YET] = None
    evaluation_ttl: Annotated[Duration | None, NoEffect("no answer is evaluated")] = Field(None, alias="evaluationTTL")


class ArkConfig(Manifest):
    """Defaults for the queries of all namespaces. In ARK it is cluster-scoped; here its namespace is ``default``."""

    kind: Literal["ArkConfig"] = "ArkConfig"
    spec: ArkConfigSpec = Field(ArkConfigSpec(), description="the defaults")
