"""A TLS proxy in front of a Temporal server, which asks for a client certificate."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")


@dataclass(frozen=True)
class Certificates:
    """A folder with an authority's certificate, and the certificates and keys of a server and a client."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> "Certificates":
        """Makes them with openssl; skips the test where there is none."""
        if shutil.which("openssl") is None:
            pytest.skip("there is no openssl here")
        made = cls(folder)
        made._request("authority", "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=keyCertSign")
        for name in ("server", "client"):
            by = ("-CA", str(made.file("authority.pem")), "-CAkey", str(made.file("authority.key")))
            made._request(name, *by, "-addext", "basicConstraints=CA:FALSE")
        return made

    def file(self, name: str) -> Path:
        """One of the files: ``authority.pem``, ``client.key`` and so on."""
        return self.folder / name

    def _request(self, name: str, *options: str) -> None:
        outputs = ("-keyout", str(self.file(f"{name}.key")), "-out", str(self.file(f"{name}.pem")))
        subject = ("-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost", "-days", "2")
        command = ("openssl", "req", "-x509", *_CURVE, *outputs, *subject, *options)
        subprocess.run(command, check=True, capture_output=True)


@contextlib.asynccontextmanager
async def tls_proxy(address: str, certificates: Certificates) -> AsyncIterator[str]:
    """A proxy that speaks TLS with clients whose certificate the authority has signed; gives its address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.file("server.pem"), certificates.file("server.key"))
    context.load_verify_locations(certificates.file("authority.pem"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, to_behind = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_forward(reader, to_behind), _forward(behind, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"localhost:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()
