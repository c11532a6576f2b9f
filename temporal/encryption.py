"""Encryption of payloads with AES-256-GCM. Keys have ids; the first key encrypts, all keys decrypt."""

import base64
import binascii
import hmac
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from ..contracts.settings import SettingsError
from ..installation import require

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEYS = "BATON_ENCRYPTION_KEYS"
KEYS_FILE = "BATON_ENCRYPTION_KEYS_FILE"
"""The environment variables with the keys, or with the path of a file with keys."""

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16

ENCODING = b"binary/encrypted"
KEY_ID = "encryption-key-id"
"""The metadata of an encrypted payload, as in Temporal's samples."""

SEALED_PREFIX = "sealed"
"""The first word of an encrypted text in the journal."""

_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)


class UnknownKeyError(SettingsError):
    """Data is encrypted with a key that this process doesn't have."""


class WrongKeyError(SettingsError):
    """Encrypted data was modified, or is encrypted with another key of the same id."""


@dataclass(frozen=True)
class Key:
    """A key for AES-256-GCM: its id, which is stored with everything that it encrypts, and its 32 bytes."""

    id: str
    secret: bytes = field(repr=False)

    @classmethod
    def generate(cls, key_id: str) -> "Key":
        """A new random key; raises SettingsError for an invalid id."""
        if not _ID.fullmatch(key_id):
            raise SettingsError(f"'{key_id}' is not a valid key id: use 1 to 64 letters, digits, '.', '_' and '-'")
        return cls(key_id, secrets.token_bytes(KEY_BYTES))

    @classmethod
    def parse(cls, text: str, where: str) -> "Key":
        """Parses ``ID:KEY``; raises SettingsError, which names the place ``where`` the key is but not the key."""
        key_id, _, encoded = text.partition(":")
        if not _ID.fullmatch(key_id) or not encoded:
            raise SettingsError(f"{where} is not of the form ID:KEY; 'baton encryption-key' prints one")
        try:
            secret = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            secret = b""
        if len(secret) != KEY_BYTES:
            raise SettingsError(f"{where}, with the id '{key_id}', is not {KEY_BYTES} bytes in base64")
        return cls(key_id, secret)

    def __str__(self) -> str:
        return f"{self.id}:{base64.b64encode(self.secret).decode()}"

    @cached_property
    def _cipher(self) -> "AESGCM":
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  # only if there are keys

        return AESGCM(self.secret)

    @cached_property
    def _name_key(self) -> bytes:
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

        return HKDF(SHA256(), KEY_BYTES, salt=None, info=b"baton name").derive(self.secret)

    def encrypt(self, plain: bytes, associated_data: bytes) -> bytes:
        """Encrypts; the same ``associated_data`` is needed to decrypt."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, plain, associated_data)

    def decrypt(self, sealed: bytes, associated_data: bytes) -> bytes:
        """Decrypts; raises WrongKeyError."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        try:
            return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], associated_data)
        except (InvalidTag, ValueError):
            raise WrongKeyError(
                f"data encrypted with the key '{self.id}' was modified, or {KEYS} has a different key with that id"
            ) from None

    def keyed_hash(self, text: str) -> str:
        """A keyed hash (HMAC) of a text: 64 hexadecimal digits with which guesses can't be verified without the key."""
        return hmac.new(self._name_key, text.encode(), "sha256").hexdigest()


class Keys:
    """The keys of a process, in order. Without keys nothing is encrypted.

    Raises MissingExtraError for keys without the extra `encryption`.
    """

    def __init__(self, *keys: Key) -> None:
        if keys:
            require("encryption", KEYS)
        self._keys = {key.id: key for key in keys}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Keys":
        """The keys in BATON_ENCRYPTION_KEYS, or in the file named by BATON_ENCRYPTION_KEYS_FILE; raises SettingsError.

        A key is ``ID:KEY`` with 32 bytes in base64; spaces, commas or line breaks separate keys. In the file, lines
        that begin with ``#`` are comments.
        """
        setting, text = _configured_keys(environment)
        entries = re.split(r"[\s,]+", text.strip(" \n\r\t,"))
        parsed = [Key.parse(entry, f"entry {number} of {setting}") for number, entry in enumerate(entries, 1) if entry]
        keys = cls(*parsed)
        if len(keys.ids) < len(parsed):
            raise SettingsError(f"{setting} has several keys with the same id")
        if environment.get(setting) and not parsed:  # rather than running without encryption
            raise SettingsError(f"{setting} has no key")
        return keys

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the keys."""
        return tuple(self._keys)

    @property
    def all(self) -> tuple[Key, ...]:
        """The keys, in order."""
        return tuple(self._keys.values())

    def seal(self, text: str, place: str) -> str:
        """Encrypts a text of the journal with the first key, if there is one: ``sealed:KEY-ID:BASE64``.

        Its ``place`` in the journal is authenticated (AEAD), so that it can't be moved to another place.
        """
        if not self.all:
            return text
        key = self.all[0]
        encrypted = key.encrypt(text.encode(), _journal_data(key.id, place))
        return f"{SEALED_PREFIX}:{key.id}:{base64.b64encode(encrypted).decode()}"

    def unseal(self, text: str, place: str) -> str:
        """Decrypts a sealed text; raises UnknownKeyError or WrongKeyError. Without that prefix it is plain JSON."""
        if not text.startswith(f"{SEALED_PREFIX}:"):
            return text
        _, key_id, encrypted = text.split(":")
        return self.decrypt(key_id, base64.b64decode(encrypted), _journal_data(key_id, place)).decode()

    def decrypt(self, key_id: str, sealed: bytes, associated_data: bytes) -> bytes:
        """Decrypts with the key with that id; raises UnknownKeyError or WrongKeyError."""
        if key_id not in self._keys:
            available = f"has only {', '.join(self.ids)}" if self.ids else "is not set"
            raise UnknownKeyError(f"this is encrypted with the key '{key_id}', but {KEYS} {available}")
        return self._keys[key_id].decrypt(sealed, associated_data)


def _journal_data(key_id: str, place: str) -> bytes:
    """The associated data of a text of the journal."""
    return f"baton journal\n{key_id}\n{place}".encode()


def _configured_keys(environment: Mapping[str, str]) -> tuple[str, str]:
    """The name of the setting that has the keys, and its text."""
    path = environment.get(KEYS_FILE)
    if not path:
        return KEYS, environment.get(KEYS, "")
    if environment.get(KEYS):
        raise SettingsError(f"{KEYS} and {KEYS_FILE} are both set: remove one of them")
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingsError(f"{KEYS_FILE}: {path} can't be read: {reason}") from None
    return KEYS_FILE, "\n".join(line for line in lines if not line.lstrip().startswith("#"))


class EncryptionCodec(PayloadCodec):
    """Encrypts Temporal's payloads with their metadata; unencrypted payloads are passed through.

    An application gives it to its own clients, so that they can read what Baton's workers have encrypted.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """The codec with the keys in BATON_ENCRYPTION_KEYS or BATON_ENCRYPTION_KEYS_FILE; raises SettingsError."""
        return cls(Keys.from_environment(environment))

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encrypts with the first key, if there is one."""
        if not self._keys.all:
            return [*payloads]
        return [_encrypted(self._keys.all[0], payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypts; raises UnknownKeyError or WrongKeyError."""
        return [self._decrypted(payload) for payload in payloads]

    def _decrypted(self, payload: Payload) -> Payload:
        key_id = payload.metadata.get(KEY_ID, b"").decode(errors="replace")
        # A payload that no worker can have encrypted is passed through: the payload converter will reject it.
        is_encrypted = payload.metadata.get("encoding") == ENCODING and len(payload.data) >= NONCE_BYTES + TAG_BYTES
        if not is_encrypted or not _ID.fullmatch(key_id):
            return payload
        plain = self._keys.decrypt(key_id, payload.data, _payload_data(key_id))
        try:
            return Payload.FromString(plain)
        except DecodeError:
            return payload


class ChainedCodec(PayloadCodec):
    """Applies several codecs: encodes with the first one first, and decodes in reverse order."""

    def __init__(self, *codecs: PayloadCodec) -> None:
        self.codecs = codecs

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encodes with all codecs."""
        encoded = [*payloads]
        for codec in self.codecs:
            encoded = await codec.encode(encoded)
        return encoded

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decodes with all codecs."""
        decoded = [*payloads]
        for codec in reversed(self.codecs):
            decoded = await codec.decode(decoded)
        return decoded


def _encrypted(key: Key, payload: Payload) -> Payload:
    sealed = key.encrypt(payload.SerializeToString(), _payload_data(key.id))
    return Payload(metadata={"encoding": ENCODING, KEY_ID: key.id.encode()}, data=sealed)


def _payload_data(key_id: str) -> bytes:
    """The associated data of a payload, which authenticates the metadata."""
    return b"\n".join((b"baton payload", ENCODING, key_id.encode()))
