"""HTML and SVG elements: every text in them is escaped, and its control characters are shown."""

import re
from datetime import datetime
from xml.etree.ElementTree import Element

from ..text import escape_control_characters

_NO_TEXT = re.compile("[\x00\ud800-\udfff\ufffe\uffff]")
"""Characters that no page can have."""


def h(tag: str, *children: "Element | str | None", **attributes: str | float | bool | None) -> Element:
    """An element. In the names of attributes ``_`` stands for ``-``, and one at the end for nothing.

    An attribute that is None or False is left out; one that is True has no value.
    """
    element = Element(tag)
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        shown = "" if value is True else f"{value:g}" if isinstance(value, float) else str(value)
        element.set(name.rstrip("_").replace("_", "-"), clean(shown))
    for child in children:
        if isinstance(child, Element):
            element.append(child)
        elif child:
            _append_text(element, clean(child))
    return element


def _append_text(element: Element, text: str) -> None:
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text


def clean(text: str) -> str:
    """The text with visible characters instead of those that control a terminal or the direction of text."""
    return _NO_TEXT.sub("\ufffd", escape_control_characters(text.replace("\r\n", "\n")))


SPEAKER_COLORS = 8
"""The number of colors of speakers, as in the console."""


def speaker_color(name: str) -> int:
    """The color of a speaker: the same as in the console (``speakerColor`` in ``ui.js``)."""
    digest = 2166136261
    for character in name:
        digest = ((digest ^ ord(character)) * 16777619) & 0xFFFFFFFF
    return (digest ^ (digest >> 13)) % SPEAKER_COLORS


def duration(seconds: float) -> str:
    """A duration such as ``80 ms``, ``0.4 s``, ``2 min 05 s`` or ``3 h 07 min``."""
    if 0 < seconds < 0.1:
        return f"{seconds * 1_000:.0f} ms"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86_400:
        return f"{whole // 3_600} h {whole % 3_600 // 60:02} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3_600} h"


def money(dollars: float) -> str:
    """A cost such as ``$0.0123`` or ``$4.20``."""
    return "$0" if dollars == 0 else f"${dollars:.4f}" if dollars < 0.01 else f"${dollars:,.2f}"


def clock(at: datetime) -> Element:
    """The time of day, with the date for programs."""
    return h("time", f"{at:%H:%M:%S}", datetime=at.isoformat())


def moment(at: datetime) -> Element:
    """A time with its date."""
    return h("time", f"{at:%Y-%m-%d %H:%M:%S} UTC", datetime=at.isoformat())


def words(text: str, class_: str = "words") -> Element:
    """A text of a user or a model, in its own direction."""
    return h("div", text, class_=class_, dir="auto")
