"""The Tool of each built-in tool, which is there without a manifest."""

from .agent_tool import BUILT_INS
from .base import API_VERSION
from .manifest import Metadata
from .tool import Tool, ToolSpec


def built_in_tool(namespace: str, name: str) -> Tool | None:
    """The Tool of that name if it is built in."""
    if name not in BUILT_INS:
        return None
    metadata = Metadata(name=name, namespace=namespace)
    return Tool(api_version=API_VERSION, kind="Tool", metadata=metadata, spec=ToolSpec(type="built-in"))
