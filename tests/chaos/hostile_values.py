"""Hypothesis strategies for conditions, schemas, texts and bodies that are made to take long."""

import gzip
import zlib
from typing import Any

from hypothesis import strategies as st

from tests.harness.tool_server import Answer

GAPS = st.sampled_from(("", " ", "\n", "//\n", "// all(x, y)\r\n", "\t//'\n "))
MACROS = st.sampled_from(("all", "exists", "exists_one", "existsOne", "map", "filter"))
NAMES = st.sampled_from(("message", "turn", "critiques", "x", "all", "session"))
LISTS = st.integers(1, 60).map(lambda count: f"[{','.join('1' * count)}]") | NAMES
LEAVES = st.sampled_from(
    ("true", "turn > 1", "message.matches('((a{99}){99}){9}')", "message.matches('(a*)*b')", "message+message == ''")
) | st.integers(1, 60).map(lambda count: "+".join(["message"] * count) + " == ''")


@st.composite
def loops(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    """A loop over a list, with comments and line ends between its tokens."""
    given, name, macro = draw(LISTS), draw(NAMES), draw(MACROS)
    gaps = [draw(GAPS) for _ in range(3)]
    return f"{given}.{gaps[0]}{macro}{gaps[1]}({gaps[2]}{name}, {draw(inner)})"


CONDITIONS = st.recursive(LEAVES, lambda inner: loops(inner) | st.tuples(inner, inner).map(" || ".join), max_leaves=6)

PATTERNS = st.sampled_from(("^([A-Za-z]+ ?)+$", "(a|a)*b", "^(a+)+$", "((a*)*)*b", "(?=(a+))\\1+b", "(", "\\p{L}+$"))
KEYWORDS = st.one_of(
    st.fixed_dictionaries({"pattern": PATTERNS}),
    st.fixed_dictionaries({"patternProperties": st.dictionaries(PATTERNS, st.booleans(), max_size=2)}),
    st.fixed_dictionaries({"uniqueItems": st.just(True)}),
    st.fixed_dictionaries({"multipleOf": st.sampled_from((0.1, 1e-300, 7))}),
    st.fixed_dictionaries({"$ref": st.sampled_from(("#", "#/$defs/0", "#/$defs/1", "#/$defs/nowhere"))}),
    st.fixed_dictionaries({"type": st.sampled_from(("string", "object", "array"))}),
)


def _combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    keyword = st.sampled_from(("allOf", "anyOf", "oneOf"))
    within = st.sampled_from(("items", "not", "additionalProperties", "unevaluatedProperties", "contains"))
    return st.one_of(
        st.builds(lambda key, each: {key: each + each}, keyword, several),
        st.builds(lambda key, each: {key: each}, within, inner),
        st.builds(lambda one, two: {**one, "$defs": {"0": two, "1": {"allOf": [two, two]}}}, inner, inner),
    )


SCHEMAS = st.recursive(KEYWORDS, _combined, max_leaves=8)
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(("a" * 50 + "!", "a" * 100_000, 10**400, [[1] * 2_000, ["1"] * 2_000])),
    st.integers(1, 900).map(lambda depth: _deep(depth)),
    st.integers(1, 3_000).map(lambda count: [each for n in range(count) for each in (n, str(n))]),
)


def _deep(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


ZEROS = bytes(20_000_000)
PACKED = {"gzip": gzip.compress(ZEROS), "deflate": zlib.compress(ZEROS)}
PACKED["gzip, gzip"] = gzip.compress(PACKED["gzip"])
ENCODINGS = st.sampled_from((*PACKED, "br", "zstd", "deflate, gzip", "x-gzip", "identity", "nonsense", ""))
CHARSETS = st.sampled_from(("utf-8", "zlib", "idna", "punycode", "unicode_escape", "utf-7", "rot13", "undefined", "x"))
BODIES = st.builds(
    lambda body, encoding, charset, status: Answer(
        body, status, {"content-encoding": encoding, "content-type": f"text/plain; charset={charset}"}
    ),
    st.sampled_from((*PACKED.values(), b"x" * 1_000_000, b"xn--" * 60_000)),
    ENCODINGS,
    CHARSETS,
    st.sampled_from((200, 302, 404, 500)),
)
