"""The input of the workflow ``expire``, and the request and the result of the activity of that name."""

from pydantic import Field

from ...resources.base import JsonModel

MAX_SECONDS = 3650 * 86_400.0
"""The longest duration that manifests and settings take: ten years."""


class ExpireInput(JsonModel):
    """``expire``: what the run above has left is deleted after so many seconds."""

    seconds: float = Field(ge=0, le=MAX_SECONDS)


class ExpireRequest(JsonModel):
    """The run to delete, by its workflow id and the id of its last execution."""

    workflow_id: str
    run_id: str


class ExpireResult(JsonModel):
    """How many executions were deleted, and whether the journal keeps their rows because others go on from them."""

    runs: int
    journal_kept: bool = False
