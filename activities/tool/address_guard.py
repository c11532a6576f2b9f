"""May a request go there? Not into the worker's own network, unless the manifest or a setting says so."""

import asyncio
import ipaddress
import socket

from ...conversation.errors import ToolFailed

TRANSLATED = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96")))
"""Addresses by which an IPv6 network reaches IPv4, so any that IPv4 can."""

METADATA = ipaddress.IPv4Address("168.63.129.16")
"""Azure's own server for its machines, which lies in the public range."""


async def public_address(host: str, port: int) -> str:
    """An address of ``host`` in the public network; raises ToolFailed where it has one that is not.

    Whoever connects must use this very address: asked again, a name may lead elsewhere.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ToolFailed(f"{host} can't be found", retryable=True) from None
    addresses = [str(each[4][0]) for each in found]
    if not all(map(_is_public, addresses)):
        raise ToolFailed(
            f"{host} lies in the worker's own network, and was not written in the manifest but came with the call: "
            "BATON_ALLOW_PRIVATE_HOSTS=1 allows it"
        )
    return addresses[0]


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if inner := ip.ipv4_mapped or ip.sixtofour or (ip.teredo and ip.teredo[1]):
            return _is_public(str(inner))
        if ip.is_site_local or any(ip in network for network in TRANSLATED):
            return False
    return ip.is_global and not ip.is_multicast and ip != METADATA
