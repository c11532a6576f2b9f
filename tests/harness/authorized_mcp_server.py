"""An MCP server of the official SDK with an authorization server of its own, whose refresh tokens are valid once."""

import asyncio
from pathlib import Path

import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    TokenError,
)
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from mcp_types import ToolAnnotations
from pydantic import AnyHttpUrl

CLIENT, CLIENT_SECRET = "baton-client", "the-secret:of/the+client"


class Tokens(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """The file ``tokens`` in a folder has a line for each pair that was given out; only the last one is valid.

    With a file ``revoked`` no access token is; with a file ``post`` the client sends its secret in the form.
    While there is a file ``held``, new tokens are not sent.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder, self._file, self._seconds = folder, folder / "tokens", seconds

    def _last(self) -> tuple[str, str]:
        access, refresh = self._file.read_text().splitlines()[-1].split()
        return access, refresh

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        """The one client that there is."""
        return OAuthClientInformationFull(
            client_id=CLIENT,
            client_secret=CLIENT_SECRET,
            redirect_uris=[AnyHttpUrl("http://localhost")],
            grant_types=["authorization_code", "refresh_token"],
            token_endpoint_auth_method=f"client_secret_{'post' if (self._folder / 'post').exists() else 'basic'}",
        )

    async def load_access_token(self, token: str) -> AccessToken | None:
        """The token, if it is the last one."""
        valid = token == self._last()[0] and not (self._folder / "revoked").exists()
        return AccessToken(token=token, client_id=CLIENT, scopes=[]) if valid else None

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        """The token, if it is the last one."""
        return (
            RefreshToken(token=refresh_token, client_id=CLIENT, scopes=[]) if refresh_token == self._last()[1] else None
        )

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        """The next pair of tokens: after ``seconds``, in which the old one is used up already."""
        if refresh_token.token != self._last()[1]:
            raise TokenError("invalid_grant", "the refresh token was used before")
        number = len(self._file.read_text().splitlines())
        with self._file.open("a") as tokens:
            tokens.write(f"access-token-{number} refresh-token-{number}\n")
        await asyncio.sleep(self._seconds)
        while (self._folder / "held").exists():
            await asyncio.sleep(0.02)
        access, refresh = self._last()
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=3_600)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        """Not needed here, as the rest."""
        raise NotImplementedError

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        raise NotImplementedError

    async def load_authorization_code(self, client: OAuthClientInformationFull, code: str) -> AuthorizationCode | None:
        raise NotImplementedError

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        raise NotImplementedError

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        raise NotImplementedError


def serve(folder: Path, seconds: float, issuer: str, port: int) -> None:
    """Serves the tool ``echo`` until the process is killed; ``issuer`` is another authorization server than its own."""
    here = f"http://127.0.0.1:{port}"
    settings = AuthSettings(
        issuer_url=AnyHttpUrl(issuer or here),
        resource_server_url=AnyHttpUrl(f"{here}/mcp"),
        validate_token_resource=False,
    )
    server = MCPServer("test", auth_server_provider=Tokens(folder, seconds), auth=settings)

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def echo(message: str) -> str:
        """Gives the message back."""
        return message

    uvicorn.run(server.streamable_http_app(), port=port, log_level="critical")
