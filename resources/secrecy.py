"""What may never travel? Secrets, and the keys that a manifest spells out; the catalog keeps references to them."""

from collections.abc import Iterator

from pydantic import SecretStr

from resources.base import Metadata, Reference
from resources.catalog import Catalog, Resource
from resources.model import Model, OpenAIConfig
from resources.rules import Violation
from resources.secret import Secret
from resources.values import KeyRef, ValueFrom, ValueSource


class Secrets:
    """The Secrets of a set of files, by namespace and name."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Secret] = {}

    def __len__(self) -> int:
        return len(self._known)

    def add(self, secret: Secret) -> None:
        """Keeps a Secret."""
        self._known[secret.namespace, secret.name] = secret

    def get(self, namespace: str, name: str) -> Secret | None:
        """The Secret of that namespace and name."""
        return self._known.get((namespace, name))

    def find(self, reference: Reference) -> Secret | None:
        """The Secret that a reference leads to."""
        return self.get(reference.namespace, reference.name) if "Secret" in reference.kinds else None

    def missing_keys(self, catalog: Catalog) -> Iterator[Violation]:
        """References to a key that a known Secret doesn't have."""
        for manifest in catalog.manifests:
            for path, ref in manifest.secret_refs() if isinstance(manifest, Model) else ():
                secret = self.get(manifest.namespace, ref.name)
                if secret and secret.value(ref.key) is None and not ref.optional:
                    keys = ", ".join(sorted({*secret.data, *secret.string_data})) or "none"
                    yield Violation(manifest, path, f"Secret '{ref.name}' has no key '{ref.key}'; its keys: {keys}")


def take_out(manifest: Resource, secrets: Secrets) -> Resource:
    """The manifest with every key that it spells out kept in ``secrets`` and replaced by a reference."""
    if not isinstance(manifest, Model):
        return manifest
    config = manifest.spec.config
    for kind in ("openai", "azure", "gemini"):
        connection: OpenAIConfig | None = getattr(config, kind)
        if connection and connection.api_key and connection.api_key.value:
            ref = KeyRef(name=f"inline.model.{manifest.name}", key=f"{kind}.apiKey")
            secrets.add(_secret(manifest, ref, connection.api_key.value))
            reference = ValueSource(value_from=ValueFrom(secret_key_ref=ref))
            config = config.model_copy(update={kind: connection.model_copy(update={"api_key": reference})})
    return manifest.model_copy(update={"spec": manifest.spec.model_copy(update={"config": config})})


def _secret(owner: Model, ref: KeyRef, value: str) -> Secret:
    metadata = Metadata(name=ref.name, namespace=owner.namespace)
    return Secret(api_version="v1", metadata=metadata, string_data={ref.key: SecretStr(value)})
