"""Secrets in texts: they are found in every form in which an address, JSON, HTML or an encoding may hold them."""

import base64
import html
import io
import json
import logging
import random
import re
import time
from datetime import UTC, datetime
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.activities.runtime import redaction
from baton.activities.runtime.redaction import PIECE, Redactor, forms_of
from baton.activities.runtime.secrets import SecretStore
from baton.contracts.message import Message, PersonDecision, ServerContent, ToolCall
from baton.observability.log import EscapingFormatter
from baton.resources.secret import Secret, Secrets
from tests.harness.event_loop import watched_loop

SECRET = 'k+e=y@/"é%41\\ &<z>0123'


def knowing(*secrets: str) -> Redactor:
    redactor = Redactor()
    for each in secrets:
        redactor.add(each)
    return redactor


def lower(address: str) -> str:
    """An address whose percent signs have small digits."""
    return re.sub("%..", lambda escape: escape[0].lower(), address)


FORMS = {
    "as it is": SECRET,
    "in a path as it is sent": quote(SECRET, "/:@!$&'()*+,;=~"),
    "in a query": quote(SECRET, ""),
    "in a query with small digits": lower(quote(SECRET, "")),
    "in a form": quote_plus(SECRET),
    "in JSON": json.dumps(SECRET)[1:-1],
    "in JSON with letters as they are": json.dumps(SECRET, ensure_ascii=False)[1:-1],
    "in JSON in JSON": json.dumps(json.dumps(SECRET))[1:-1],
    "in JSON in JSON in JSON": json.dumps(json.dumps(json.dumps(SECRET)))[1:-1],
    "each letter escaped": "".join(f"\\u{ord(each):04x}" for each in SECRET),
    "each letter escaped in JSON": "".join(f"\\\\u{ord(each):04X}" for each in SECRET),
    "in HTML": html.escape(SECRET),
    "in HTML by numbers": "".join(f"&#{ord(each)};" for each in SECRET),
    "in HTML by other numbers": "".join(f"&#x{ord(each):X};" for each in SECRET),
    "in JSON in an address": quote(json.dumps(SECRET)[1:-1], ""),
    "twice in an address": quote(quote(SECRET, ""), ""),
    "in hexadecimal digits": SECRET.encode().hex(),
    "in large hexadecimal digits": SECRET.encode().hex().upper(),
    "in base64": base64.b64encode(SECRET.encode()).decode().rstrip("=")[:-1],
    "in base64 after a name": base64.b64encode(b"user:" + SECRET.encode()).decode(),
    "in base64 for addresses": base64.urlsafe_b64encode(b"u:" + SECRET.encode()).decode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_found_in_each_form(form: str) -> None:
    written = FORMS[form]
    clean = knowing(SECRET).redact(f"before {written} after")
    assert clean.startswith("before ")
    assert clean.endswith(" after")
    assert "[secret]" in clean
    assert len(clean) < 40


def test_what_is_no_secret_stays_as_it_is() -> None:
    text = r'50% of "x\u0041" &amp; %zz \" \\ &lt;b&gt; key'
    assert knowing(SECRET).redact(text) == text
    assert Redactor().redact(text) == text


@given(st.text(min_size=6, max_size=40), st.text(max_size=30), st.text(max_size=30))
def test_no_text_and_no_secret_break_the_search(secret: str, before: str, after: str) -> None:
    clean = knowing(secret).redact(before + secret + after)
    assert secret not in clean.replace("[secret]", "") or secret in before + after


@given(st.text(st.sampled_from("ab%2\\u0&#;\"'/+= é"), min_size=6, max_size=20))
def test_a_secret_of_signs_that_escape_is_found_where_it_was_escaped(secret: str) -> None:
    redactor = knowing(secret)
    for form in (quote(secret, ""), json.dumps(secret)[1:-1], html.escape(secret)):
        assert form not in redactor.redact(f"<{form}>")


@pytest.mark.parametrize("form", [SECRET, quote(SECRET, ""), json.dumps(SECRET)[1:-1]])
def test_a_text_that_is_cut_ends_before_a_secret_that_has_begun(form: str) -> None:
    for length in range(1, len(form)):
        assert knowing(SECRET).redact_partial(f"before- {form[:length]}").startswith("before-")
        assert form[: max(length, 3)][:3] not in knowing(SECRET).redact_partial(f"before- {form[:length]}")


def store(**values: str) -> SecretStore:
    own = Secrets()
    data = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": values}
    own.add(Secret.model_validate(data))
    return SecretStore(own, {"OPENAI_API_KEY": "sk-environment-0123"})


def test_a_worker_knows_its_own_secrets_from_its_start_also_those_that_nobody_has_read() -> None:
    text = store(token=f"{SECRET}\n").redact(f"{SECRET} and sk-environment-0123")
    assert text == "[secret] and [secret]"


ENVIRONMENT = {
    "OPENAI_API_KEY": "of-openai-0123",
    "ANTHROPIC_AUTH_TOKEN": "of-anthropic-0123",
    "OPENAI_CUSTOM_HEADERS": "X-Gateway: of-a-gateway-0123\nAuthorization: Bearer of-a-bearer-0123",
    "ANTHROPIC_CUSTOM_HEADERS": "X-Other: of-another-0123",
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Basic%20of-traces-0123,x=of-x-0123",
    "BATON_ENCRYPTION_KEYS": "one:b2YtYS1rZXktMDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY=",
    "BATON_JOURNAL_URL": "postgresql://baton:of-a%40database-0123@db/baton",
}


def test_a_worker_knows_the_secrets_of_its_environment_also_those_that_only_libraries_read() -> None:
    store = SecretStore(Secrets(), ENVIRONMENT)
    for each in ("openai", "anthropic", "a-gateway", "a-bearer", "another", "traces", "x", "a@database"):
        assert store.redact(f"key of-{each}-0123.") == "key [secret]."
    assert store.redact("b2YtYS1rZXktMDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY=") == "[secret]"


def test_escapes_of_any_length_are_not_kept() -> None:
    kept = redaction._char.cache_info().currsize
    store = knowing("secret-0123")
    for size in range(20, 60):
        assert store.redact("\\" * size + "n" + "%e2" * size + "secret-0123").endswith("[secret]")
    assert redaction._char.cache_info().currsize <= kept + 1


async def test_what_a_model_chooses_of_a_message_holds_no_secret() -> None:
    extra = ServerContent(model=f"gpt-{SECRET} at example.com", content=json.dumps({"google": SECRET}))
    call = ToolCall(id=f"call-{SECRET}", name=f"n{SECRET}", arguments=json.dumps({"x": SECRET}), extra=extra)
    message = Message(role="assistant", content=SECRET, model=f"gpt-{SECRET}", tool_calls=(call,))
    clean = await store(token=SECRET).redact_message(message)
    assert clean.model == "gpt-[secret]"
    (cleaned,) = clean.tool_calls
    assert (cleaned.id, cleaned.name, cleaned.arguments) == ("call-[secret]", "n[secret]", '{"x": "[secret]"}')
    reply = PersonDecision(approved=True, at=datetime.now(UTC), by=f"Eve {SECRET}", text=SECRET, reason=SECRET)
    decided = (await store(token=SECRET).redact_message(Message(role="user", content="x", decision=reply))).decision
    assert decided
    assert (decided.by, decided.text, decided.reason) == ("Eve [secret]", "[secret]", "[secret]")
    assert cleaned.extra == ServerContent(model="gpt-[secret] at example.com", content='{"google": "[secret]"}')


async def test_a_long_answer_full_of_escapes_does_not_hold_the_event_loop() -> None:
    text = r"\u0041 %2b &lt; word " * 40_000 + json.dumps(SECRET)
    message = Message(role="assistant", content=text)
    async with watched_loop() as waits:
        clean = await store(token=SECRET).redact_message(message)
    assert clean.content.endswith('word "[secret]"')
    assert waits.held < waits.used / 3


@pytest.mark.parametrize("before", [PIECE - 1, PIECE - 10, PIECE, 2 * PIECE - 5])
def test_a_secret_where_two_pieces_of_a_long_text_meet_is_found_once(before: int) -> None:
    assert knowing(SECRET).redact("x" * before + SECRET + "y" * 10) == "x" * before + "[secret]" + "y" * 10


@pytest.mark.full
def test_a_hundred_secrets_and_two_hundred_streams_hold_the_event_loop_for_moments() -> None:
    chance = random.Random(1)
    redactor = knowing(*(f"sk-{chance.getrandbits(400):x}" for _ in range(100)))
    texts = ["".join(chance.choices([*"abc defghij klmnop \n", "%2f", r"\"", "&lt;"], k=16_000)) for _ in range(20)]
    redactor.redact("the first search prepares all others")
    took = []
    for text in texts * 10:
        begun = time.thread_time()
        redactor.redact_partial(text)
        took.append(time.thread_time() - begun)
    print(f"200 texts of 20 kB: {sum(took):.2f} s, {sorted(took)[100] * 1000:.1f} ms each")
    assert sorted(took)[190] < 0.05, "seconds of the processor for the longest"


def test_there_are_not_many_forms_of_a_secret() -> None:
    assert len(forms_of(SECRET)) < 30


def test_a_line_of_the_log_holds_no_line_end_and_no_escape_of_what_it_quotes() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(EscapingFormatter("%(levelname)s %(message)s"))
    logger = logging.Logger("quoting")
    logger.addHandler(handler)
    logger.warning("it said %s", "no\nINFO all is well\x1b[2K\r\u202egood\x9b")
    assert stream.getvalue() == "WARNING it said no\\nINFO all is well\\x1b[2K\\r\\u202egood\\x9b\n"
    try:
        raise ValueError("\x1b[31mred")
    except ValueError:
        logger.exception("failed")
    assert "\x1b" not in stream.getvalue()
    assert "\nTraceback" in stream.getvalue()


def test_half_of_a_surrogate_pair_in_a_text_or_a_secret_holds_nothing_up() -> None:
    redactor = Redactor()
    redactor.add("sk-\ud83d-123456")
    redactor.add("sk-abcdef")
    assert (
        redactor.redact('{"city": "R\\ud83d", "b": "\ud83d sk-abcdef"}')
        == '{"city": "R\\ud83d", "b": "\ud83d [secret]"}'
    )


def test_a_token_is_redacted_as_long_as_it_may_be_used_however_many_others_there_are() -> None:
    now = 0.0
    redactor = Redactor(lambda: now)
    redactor.add("the-secret-of-a-file")
    redactor.add("a-token-in-use", 100)
    for number in range(300):
        redactor.add(f"token-number-{number}-", 50)
    redactor.add("token-number-299-")  # now it is in a file, too
    assert redactor.redact("a-token-in-use token-number-0-") == "[secret] [secret]"
    now = 90.0
    redactor.add("a-token-in-use", 100)
    redactor.add("token-number-299-", 1)
    now = 180.0
    redactor.add("later-token", 10)
    text = "the-secret-of-a-file a-token-in-use token-number-299- later-token token-number-0-"
    assert redactor.redact(text) == "[secret] [secret] [secret] [secret] token-number-0-"
    assert redactor.redact_partial("it is the-secret-of") == "it is "
    assert redactor.redact_partial("it is token-num") == "it is "
    now = 300.0
    redactor.add("the-latest-token", 10)
    assert redactor.redact("a-token-in-use") == "a-token-in-use", "which nobody has used since"
