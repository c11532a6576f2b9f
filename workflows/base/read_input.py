"""Reads the input of a run, which a client may have sent in any shape."""

import json
from collections.abc import Sequence
from typing import TypeVar

from pydantic import JsonValue, ValidationError
from temporalio import workflow

from ...conversation.contracts.inputs import QueryInput, TurnInput
from ...conversation.errors import InvalidInput
from ...resources.problems import dotted_path, explain_errors
from ..state.errors import ActivityFailed

Input = TypeVar("Input", QueryInput, TurnInput)


def read_input(given: Sequence[JsonValue], input_type: type[Input]) -> Input | ActivityFailed:
    """The input of a run, which a client may have sent in any shape; or what is wrong with it, as InvalidInput."""
    try:
        (value,) = given
        return input_type.model_validate_json(json.dumps(value))
    except ValidationError as error:
        wrong = "; ".join(
            f"{dotted_path(path) or 'the input'}: {text}" for path, text in explain_errors(error, input_type)
        )
        return ActivityFailed.of(InvalidInput(wrong))
    except (TypeError, ValueError):
        return ActivityFailed.of(InvalidInput("the workflow takes one JSON object as its input"))


def parent_of(given: QueryInput | TurnInput | ActivityFailed) -> str | None:
    """The id of the run above; None for a run that a client, or a workflow that is not Baton's, has started."""
    parent = workflow.info().parent
    return parent.workflow_id if parent and isinstance(given, TurnInput) and given.thread else None
