"""Chromium for tests of the console, driven by Playwright. An error in the page or a CSP violation fails a test."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

AXE = Path(__file__).parent.parent / "vendor" / "axe.min.js"
"""The accessibility checker: https://github.com/dequelabs/axe-core."""

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

SERIOUS = ("serious", "critical")
"""The impacts of findings of axe-core that fail a test."""

FAILED_RESPONSE = re.compile(r"Failed to load resource: the server responded with a status of (\d+)")
"""What Chromium logs for a response with an error."""

UNREACHABLE = 0
"""In place of the status of a response: there was none."""

TIMEOUT_MS = 60_000
"""How long a page, and what a test expects of it, is waited for: a loaded machine may need many seconds."""

expect.set_options(timeout=TIMEOUT_MS)


def chromium() -> str | None:
    """The path of the system's Chromium; None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextlib.asynccontextmanager
async def running_browser() -> AsyncIterator[Browser]:
    """Runs a browser: the system's, or the one that Playwright has installed. Skips the test if there is none."""
    async with async_playwright() as playwright:
        path = chromium()
        if path is None and shutil.which(playwright.chromium.executable_path) is None:
            pytest.skip(f"there is no browser: install one of {', '.join(NAMES)}, or run `playwright install chromium`")
        is_root = os.geteuid() == 0  # for whom Chromium has no sandbox
        browser = await playwright.chromium.launch(
            executable_path=path, chromium_sandbox=not is_root, timeout=2 * TIMEOUT_MS
        )
        try:
            yield browser
        finally:
            await browser.close()


@contextlib.asynccontextmanager
async def open_page(
    browser: Browser,
    url: str,
    *,
    key: str | None = None,
    width: int = 1_280,
    height: int = 900,
    scheme: Literal["light", "dark"] = "light",
    contrast: Literal["more", "no-preference"] = "no-preference",
    forced_colors: Literal["active", "none"] = "none",
    expects: Collection[int] = (),
    options: Mapping[str, Any] | None = None,
) -> AsyncIterator[Page]:
    """Opens a page of the console, with the caller's ``key`` if it needs one.

    At the end it raises AssertionError for each error in the page: an exception, a violation of the policy, a failed
    request. ``expects`` are the statuses of failed requests that the test is about, or UNREACHABLE.
    """
    problems: list[str] = []
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        contrast=contrast,
        forced_colors=forced_colors,
        reduced_motion="reduce",
        locale="en-GB",
        timezone_id="Europe/Berlin",
        **(options or {}),
    )
    context.set_default_timeout(TIMEOUT_MS)
    try:
        if key:
            await context.add_init_script(f"sessionStorage.setItem('baton.key', {json.dumps(key)})")
        page = await context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        await page.goto(url)
        yield page
        unexpected = [problem for problem in problems if not _is_expected(problem, expects)]
        assert not unexpected, unexpected
    finally:
        await context.close()


def _is_expected(problem: str, expects: Collection[int]) -> bool:
    if match := FAILED_RESPONSE.match(problem):
        return int(match[1]) in expects
    return "net::ERR_" in problem and UNREACHABLE in expects


async def findings(page: Page, *, colors: bool = True) -> list[str]:
    """The serious findings of axe-core on a page, each with the rule and the elements.

    Without ``colors``, contrasts are left out: where the system forces its colors, axe-core does not know them.
    """
    await page.evaluate(AXE.read_text())
    rules = {"color-contrast": {"enabled": colors}}
    results = await page.evaluate("rules => axe.run(document, {resultTypes: ['violations'], rules})", rules)
    return [
        f"{found['id']}: {found['help']}: {[node['html'][:200] for node in found['nodes'][:5]]} "
        f"{found['nodes'][0].get('failureSummary', '')[:400]}"
        for found in results["violations"]
        if found["impact"] in SERIOUS
    ]
