"""Guards the worker's own network: only a manifest of the worker's own may name a private address."""

import asyncio
import ipaddress
import socket

from ...conversation.errors import ToolFailed

TRANSLATED = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::ffff:0:0:0/96", "::/96")))
"""IPv6 ranges that are translated to IPv4, so that they may lead to any IPv4 address."""

PROTOCOLS = ipaddress.IPv4Network("192.0.0.0/24")
"""Addresses of protocols and of a cloud's metadata: some versions of Python count a part of them as public."""

AZURE_METADATA = ipaddress.IPv4Address("168.63.129.16")
"""Azure's server for its virtual machines: an internal service with an address in the public range."""


async def public_address(host: str, port: int) -> str:
    """A public IP address of ``host``. Raises ToolFailed if any address of it is not public.

    The caller must connect to the returned address: another look-up of the name may give a different one.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ToolFailed(f"{host} can't be found", retryable=True) from None
    addresses = [str(each[4][0]) for each in found]
    if not all(map(_is_public, addresses)):
        raise ToolFailed(
            f"{host} lies in the worker's own network, and no manifest of the worker's own names it, but a run, a call "
            "or a server: BATON_ALLOW_PRIVATE_HOSTS=1 allows it"
        )
    return addresses[0]


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if inner := ip.ipv4_mapped or ip.sixtofour or (ip.teredo and ip.teredo[1]):
            return _is_public(str(inner))
        if ip.is_site_local or any(ip in network for network in TRANSLATED):
            return False
    return ip.is_global and not ip.is_multicast and ip not in PROTOCOLS and ip != AZURE_METADATA
