"""The host to which a manifest sends its values: a Secret that a run's own manifests may use is bound to hosts."""

import re
from urllib.parse import urlsplit

from ...resources.a2a_server import A2AServer
from ...resources.execution_engine import ExecutionEngine
from ...resources.manifest import Manifest
from ...resources.mcp_server import MCPServer
from ...resources.memory import Memory
from ...resources.model import Model
from ...resources.tool import Tool
from ...resources.values import ValueSource

_HOST = re.compile(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]")


def address_of(manifest: Manifest) -> ValueSource | None:
    """The address of the server that a manifest stands for; None where it has none."""
    match manifest:
        case Model():
            return manifest.spec.connection.base_url if manifest.spec.connection else None
        case MCPServer() | A2AServer() | ExecutionEngine() | Memory():
            return manifest.spec.address
        case Tool():
            url = manifest.spec.http.url if manifest.spec.http else manifest.spec.openapi and manifest.spec.openapi.url
            return ValueSource(value=url) if url else None
    return None


def fixed_host(url: str) -> str | None:
    """The host of an address; None where a parameter or an argument is a part of it."""
    authority = urlsplit(url).netloc
    host = urlsplit(url).hostname if "{" not in authority else None
    return host if host and _HOST.fullmatch(host) else None
