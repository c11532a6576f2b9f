"""Translates a failed request to Bedrock into an error of a run, which says whether and when to retry."""

import re

from botocore import exceptions as aws

from ....conversation.errors import (
    BrokenReply,
    CallTimeout,
    ContextTooLong,
    InvalidManifest,
    KeyMissing,
    KeyRefused,
    ModelRejected,
    ModelUnavailable,
    QuotaSpent,
)
from ....conversation.failure import BatonError
from ..failures import MAX_SERVER_TEXT, error_of_status

_STATUS = {
    "ThrottlingException": 429,
    "ModelNotReadyException": 429,
    "ModelTimeoutException": 408,
    "InternalServerException": 500,
    "ModelStreamErrorException": 500,
    "ModelErrorException": 500,
    "ServiceUnavailableException": 503,
    "ValidationException": 400,
}
"""The HTTP status for a code: errors in the midst of a stream have none, and 424 for a failed model may pass."""

_TOO_LONG = re.compile(r"(?i)too long|too many (input )?tokens|maximum context|context (length|window|limit)")
"""How Bedrock and its models say in a ValidationException that the conversation doesn't fit."""


def bedrock_error(error: Exception, where: str) -> BatonError:
    """The error of a run for what AWS' library raised. The server's own words are kept short."""
    if isinstance(own := getattr(error, "kwargs", {}).get("error"), BatonError):  # as our session has raised it
        return own
    match error:
        case aws.ClientError():
            return _of_code(error, where)
        case aws.NoCredentialsError() | aws.PartialCredentialsError() | aws.CredentialRetrievalError():
            return KeyMissing(f"{where}: the Model names no keys, and the worker's environment has none of AWS")
        case aws.NoRegionError():
            return InvalidManifest(f"{where}: the Model has no config.bedrock.region, and the worker has no AWS_REGION")
        case aws.ParamValidationError():
            return ModelRejected(f"{where}: {str(error)[:MAX_SERVER_TEXT]}")
        case aws.ReadTimeoutError() | TimeoutError():
            return CallTimeout(f"{where} gave no answer in time")
        case aws.ConnectionError() | aws.HTTPClientError():
            return ModelUnavailable(f"{where} can't be reached: {str(error)[:MAX_SERVER_TEXT]}")
        case _:
            return BrokenReply(
                f"{where} answered what can't be read: {type(error).__name__}: {str(error)[:MAX_SERVER_TEXT]}"
            )


def _of_code(error: aws.ClientError, where: str) -> BatonError:
    found, about = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
    code, words = found.get("Code", ""), found.get("Message", "")
    code = code[:1].upper() + code[1:]  # in a stream it begins with a small letter
    if code == "AccessDeniedException":  # says which permission or which model is missing, and no key
        return KeyRefused(f"{where} refused the key: {words[:MAX_SERVER_TEXT]}")
    special: type[BatonError] | None = QuotaSpent if code == "ServiceQuotaExceededException" else None
    if code == "ValidationException" and _TOO_LONG.search(words):
        special = ContextTooLong
    status = _STATUS.get(code) or about.get("HTTPStatusCode", 500)
    return error_of_status(where, status, f"{code}: {words}", about.get("HTTPHeaders", {}), special)
