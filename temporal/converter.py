"""Converts values to Temporal's payloads: those of Baton, in its own clients or beside those of an application."""

import dataclasses
import functools
import importlib
from collections.abc import Hashable, Mapping, Sequence
from itertools import zip_longest
from operator import attrgetter
from typing import Any, Self, get_args

from pydantic import JsonValue
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.contrib.pydantic import PydanticPayloadConverter, ToJsonOptions
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverter,
    DefaultFailureConverterWithEncodedAttributes,
    PayloadCodec,
    PayloadConverter,
    SerializationContext,
    WithSerializationContext,
)

from ..contracts.settings import CONVERTER, SettingsError, importable_from_here
from ..contracts.text import truncate
from ..resources.base import JsonModel
from .encryption import ChainedCodec, EncryptionCodec, Keys
from .external_storage import CheckedConverter, check_not_missing

_JSON = PydanticPayloadConverter(ToJsonOptions(exclude_unset=True)).converters.values()


class BatonPayloads(CompositePayloadConverter):
    """Converts values to JSON with pydantic, without unset fields, which are most fields of a message."""

    def __init__(self) -> None:
        super().__init__(*_JSON)  # the SDK creates a converter per task, so the expensive parts are shared

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[object]:
        """Converts payloads. An invalid value fails the run that receives it; the error doesn't contain the value.

        Raises JournalLost for a value that is missing in external storage.
        """
        check_not_missing(payloads)
        try:
            return super().from_payloads(payloads, type_hints)
        except (ValueError, KeyError, RuntimeError) as error:
            from ..contracts.errors import InvalidInput  # noqa: PLC0415  # many models, which commands needn't load

            encodings = {payload.metadata.get("encoding", b"").decode(errors="replace") for payload in payloads}
            if unknown := encodings - {encoding.decode() for encoding in self.converters}:
                raise InvalidInput(_unknown_encoding(min(unknown))) from None
            raise InvalidInput(f"a payload is not valid JSON of the expected type: {type(error).__name__}") from None


def _unknown_encoding(encoding: str) -> str:
    if not encoding:
        return "a payload has no encoding"
    return (
        f"a payload has the encoding '{truncate(encoding, 100)}', which this process can't decode: if an application's "
        f"codec has encoded it, set {CONVERTER} to the application's data converter, as package.module:attribute"
    )


DATA_CONVERTER: DataConverter = CheckedConverter(payload_converter_class=BatonPayloads)


def data_converter(environment: Mapping[str, str]) -> DataConverter:
    """The data converter; if the environment has encryption keys, it encrypts payloads and error messages.

    If the key of an encrypted value is missing, the task fails and is retried until a worker has the key; the run does
    not fail. If the environment names an application's data converter, it is the one that ``BatonPlugin`` makes of
    that. Raises SettingsError.
    """
    if named := environment.get(CONVERTER):
        return data_converter_beside(_named_converter(named), environment)
    keys = Keys.from_environment(environment)
    plain = dataclasses.replace(DATA_CONVERTER, payload_codec=EncryptionCodec(keys))
    if not keys.ids:
        return plain
    return dataclasses.replace(plain, failure_converter_class=DefaultFailureConverterWithEncodedAttributes)


def codec_for_ui(environment: Mapping[str, str]) -> PayloadCodec | None:
    """The codec with which Temporal's UI can show payloads; None if they are not encoded. Raises SettingsError."""
    if environment.get(CONVERTER) or Keys.from_environment(environment).ids:
        return data_converter(environment).payload_codec
    return None


def _named_converter(name: str) -> DataConverter:
    """The application's data converter that the setting names. Raises SettingsError."""
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        raise SettingsError(f"{CONVERTER}: write package.module:attribute, not '{name}'")
    importable_from_here()
    try:
        converter = attrgetter(attribute)(importlib.import_module(module))
    except Exception as error:  # a module may raise anything
        raise SettingsError(f"{CONVERTER}: {name} can't be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(converter, DataConverter):
        kind = type(converter).__name__
        raise SettingsError(f"{CONVERTER}: {name} is not a DataConverter of temporalio.converter, but of type {kind}")
    return converter


class _Beside(PayloadConverter, WithSerializationContext):
    """Converts values of Baton's types as Baton does, and all other values with the converter of an application."""

    def __init__(self, application: PayloadConverter) -> None:
        self._baton = BatonPayloads()
        self._application = application

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        """Converts each value with the converter that its type belongs to."""
        return [
            payload
            for value in values
            for payload in (self._baton if _is_baton_value(value) else self._application).to_payloads([value])
        ]

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """Converts each payload with the converter that its type hint belongs to."""
        check_not_missing(payloads)
        values = []
        for payload, hint in zip_longest(payloads, type_hints or ()):
            converter = self._baton if isinstance(hint, Hashable) and _is_baton_type(hint) else self._application
            values += converter.from_payloads([payload], None if hint is None else [hint])
        return values

    def with_context(self, context: SerializationContext) -> Self:
        """The same with the application's converter in that context."""
        if not isinstance(self._application, WithSerializationContext):
            return self
        application = self._application.with_context(context)
        copied = self.__class__.__new__(self.__class__)
        _Beside.__init__(copied, application)
        return copied


def _is_baton_value(value: object) -> bool:
    """Whether a value is of one of Baton's types, or a sequence of such values."""
    first = value[0] if isinstance(value, tuple | list) and value else value
    return isinstance(first, JsonModel)


@functools.lru_cache(maxsize=1_000)
def _is_baton_type(hint: Any) -> bool:
    """Whether a type is one of Baton's, contains one, or is what workflows accept from any client: JSON, or raw."""
    if hint is JsonValue or hint is RawValue:
        return True
    if isinstance(hint, type) and not get_args(hint):
        return issubclass(hint, JsonModel)
    return any(_is_baton_type(part) for part in get_args(hint) if isinstance(part, Hashable))


@functools.cache
def payloads_beside(others: type[PayloadConverter]) -> type[PayloadConverter]:
    """The class of a converter for Baton's values, which converts all other values as ``others`` does."""
    if issubclass(others, BatonPayloads | _Beside):
        return others

    class Beside(_Beside):
        def __init__(self) -> None:
            super().__init__(others())

    return Beside


def data_converter_beside(converter: DataConverter, environment: Mapping[str, str]) -> DataConverter:
    """An application's data converter, which converts Baton's values as well.

    With encryption keys in the environment it encrypts what the application's codec has encoded, unless that codec
    encrypts with Baton's already. Raises SettingsError.
    """
    payloads = payloads_beside(converter.payload_converter_class)
    codec = _with_encryption(converter.payload_codec, Keys.from_environment(environment))
    failures = converter.failure_converter_class
    if codec is not converter.payload_codec and failures is DefaultFailureConverter:
        failures = DefaultFailureConverterWithEncodedAttributes
    if type(converter) is not DataConverter:  # a subclass, whose other methods stay
        return dataclasses.replace(
            converter, payload_converter_class=payloads, payload_codec=codec, failure_converter_class=failures
        )
    return CheckedConverter(
        payload_converter_class=payloads,
        payload_codec=codec,
        failure_converter_class=failures,
        external_storage=converter.external_storage,
    )


def _with_encryption(codec: PayloadCodec | None, keys: Keys) -> PayloadCodec | None:
    parts = codec.codecs if isinstance(codec, ChainedCodec) else (codec,)
    if not keys.ids or any(isinstance(part, EncryptionCodec) for part in parts):
        return codec
    encryption = EncryptionCodec(keys)
    return ChainedCodec(codec, encryption) if codec else encryption
