"""Tokens of a certified OIDC issuer: npm's oidc-provider."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.harness.environment import Environment
from tests.harness.gateway import GatewayServer
from tests.harness.ports import own_port

pytestmark = [
    pytest.mark.full,  # it installs from the index of npm
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="there is no Node.js with npm here"),
]

AUDIENCE = "https://teams.example.com"
ISSUER = """
import Provider from "oidc-provider";
const [url, audience] = process.argv.slice(2);
const client = { grant_types: ["client_credentials"], redirect_uris: [], response_types: [] };
const resourceIndicators = {
  enabled: true,
  defaultResource: () => audience,
  useGrantedResource: () => true,
  getResourceServerInfo: (_, resource) =>
    ({ scope: "", audience: resource, accessTokenFormat: "jwt", jwt: { sign: { alg: "RS256" } } }),
};
const provider = new Provider(url, {
  clients: [{ ...client, client_id: "clerk", client_secret: "secret" }],
  features: { clientCredentials: { enabled: true }, resourceIndicators },
  extraTokenClaims: () => ({ account: "default" }),
});
provider.listen(new URL(url).port, "127.0.0.1", () => console.log("ready"));
"""


async def test_an_access_token_of_an_issuer_counts_until_it_is_for_something_else(
    served_env: Environment, tmp_path: Path
) -> None:
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "issuer.mjs").write_text(ISSUER)
    install = ["npm", "install", "--no-audit", "--no-fund", "--silent", "oidc-provider@9.13.3"]
    await asyncio.to_thread(subprocess.run, install, cwd=tmp_path, check=True, timeout=200)
    url = f"http://127.0.0.1:{own_port()}"
    process = await asyncio.create_subprocess_exec(
        "node", "issuer.mjs", url, AUDIENCE, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, env={**os.environ}
    )
    try:
        assert process.stdout
        while b"ready" not in (line := await process.stdout.readline()):
            assert line, "the issuer has not started"
        settings = {
            "BATON_GATEWAY_OIDC_ISSUER": url,
            "BATON_GATEWAY_OIDC_AUDIENCE": AUDIENCE,
            "BATON_GATEWAY_OIDC_ACCOUNT_CLAIM": "account",
        }
        async with GatewayServer.running(served_env, **settings) as gateway, httpx.AsyncClient(timeout=30) as http:

            async def token(audience: str) -> str:
                sent = {"grant_type": "client_credentials", "resource": audience}
                response = await http.post(f"{url}/token", data=sent, auth=("clerk", "secret"))
                assert response.is_success, response.text
                return str(response.json()["access_token"])

            assert (await gateway.get("/targets", key=await token(AUDIENCE)))["targets"]
            await gateway.get("/targets", 401, key=await token("https://other.example.com"))
            await gateway.get("/targets", 401, key=(await token(AUDIENCE))[:-8] + "AAAAAAAA")
    finally:
        process.terminate()
        await process.wait()
