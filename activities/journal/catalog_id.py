"""The id under which the journal keeps a catalog, and which each request of an activity holds."""

import base64

from ...resources.catalog import Catalog

_BYTES = 24


def catalog_id(catalog: Catalog) -> str:
    """The first 192 bits of the catalog's SHA-256, in 32 characters; older runs have 64 hexadecimal digits instead."""
    return base64.urlsafe_b64encode(bytes.fromhex(catalog.sha)[:_BYTES]).decode()
