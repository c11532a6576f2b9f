"""The command ``audit``: the audit log of the journal."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from .exit_codes import REFUSED, CommandEndError
from .terminal import print_message, print_result, print_rows

if TYPE_CHECKING:
    from pydantic import JsonValue

    from ..operations.audit import AuditFilter

app = typer.Typer()

COLUMNS = ("NUMBER", "TIME", "WHO", "VERIFIED", "VIA", "ACTION", "WHAT", "DETAIL")


class AuditFormat(StrEnum):
    """The output formats of the audit log."""

    text = "text"
    json = "json"
    ocsf = "ocsf"


@app.command()
def audit(
    who: Annotated[str | None, typer.Option("--who", help="Only what this person did.")] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Only this run, by its id, or manifest: KIND/NAME.")
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Only runs (run), or manifests of a kind.")] = None,
    action: Annotated[str | None, typer.Option("--action", help="Only this action, such as approve.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="A time in UTC, or how long ago, such as 24h.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="A time in UTC, or how long ago, such as 1h.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Verify the chain of all rows instead of showing them.")
    ] = False,
    head: Annotated[
        str | None, typer.Option("--head", help="With --verify: a hash that an earlier --verify printed.")
    ] = None,
    output: Annotated[
        AuditFormat, typer.Option("-o", "--output", help="json and ocsf print one JSON object per line.")
    ] = AuditFormat.text,
) -> None:
    """Show who did what: the audit log in the journal. Needs the workers' BATON_JOURNAL_URL."""
    import asyncio

    from ..operations.audit import AuditFilter

    if head and not verify:
        raise UsageError("--head is for --verify")
    if verify:
        _verify(head)
        return
    chosen = AuditFilter(
        who=who,
        name=name,
        kind=kind,
        action=action,
        since=_time(since, "--since"),
        until=_time(until, "--until"),
    )
    asyncio.run(_show(chosen, output))


async def _show(chosen: "AuditFilter", output: AuditFormat) -> None:
    from ..operations.audit import audit_rows, row_json, row_ocsf

    rows: list[tuple[Sequence[str], JsonValue]] = []
    async for row in audit_rows(chosen):
        if output is AuditFormat.text:
            entry = row.entry
            at = datetime.fromtimestamp(entry.at / 1000, UTC)
            action = entry.action if entry.outcome == "success" else f"{entry.action} ({entry.outcome})"
            verified = "yes" if entry.verified else "no"
            at_text = f"{at:%Y-%m-%d %H:%M:%S}"
            cells = (str(row.number), at_text, entry.who, verified, entry.via, action, entry.subject, entry.detail)
            rows.append((cells, None))
        else:
            print_result(json.dumps((row_json if output is AuditFormat.json else row_ocsf)(row), ensure_ascii=False))
    if output is AuditFormat.text:
        print_rows(COLUMNS, rows, "text", "The audit log has no such rows.")


def _verify(head: str | None) -> None:
    import asyncio

    from ..operations.audit import verify_audit

    verified = asyncio.run(verify_audit(head))
    for problem in verified.problems:
        print_message(f"error: {problem}", style="red")
    if verified.problems:
        raise CommandEndError(REFUSED)
    print_result(f"{verified.rows} rows, unbroken; the last hash is {verified.head or '-'}")


def _time(text: str | None, option: str) -> int | None:
    """A time in milliseconds since 1970, or so long ago. Raises UsageError."""
    from ...resources.base import parse_duration

    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        try:
            at = datetime.now(UTC) - parse_duration(text)
        except ValueError:
            raise UsageError(
                f"{option}: '{text}' is neither a time, such as 2026-11-25T09:00, nor an age, such as 24h"
            ) from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
