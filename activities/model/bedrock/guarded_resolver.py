"""The look-up of host names for models at Bedrock whose address a run has brought: public addresses alone."""

import socket

from aiohttp.abc import AbstractResolver, ResolveResult

from ...tool.address_guard import public_address


class GuardedResolver(AbstractResolver):
    """Gives the one address that was checked. A host that is an address itself is never looked up."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """A public address of a host. Raises ToolFailed if any address of it is not public."""
        address = await public_address(host, port)
        found = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [ResolveResult(hostname=host, host=address, port=port, family=found, proto=0, flags=0)]

    async def close(self) -> None:
        """Nothing to close."""
