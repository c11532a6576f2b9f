"""The plots of a report as SVG: lanes over time, and bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from xml.etree.ElementTree import Element

from .markup import duration, h
from .report import Bar, Turn

WIDTH = 960
LABELS = 190
"""The width of the names of lanes and bars, in pixels."""

LANE_HEIGHT = 28
BREAK_WIDTH = 44
"""The width of a long time in which only was waited."""

LONG_GAP = 0.2
"""A pause of more than this share of the time in which something was done is drawn as a break."""

MAX_COLUMNS = 240
"""Columns of a plot; of more turns several are one column."""

NAME_CHARACTERS = 24


@dataclass(frozen=True)
class Piece:
    """A part of the time axis, from ``start`` to ``end`` in seconds, and from ``left`` to ``right`` in pixels."""

    start: float
    end: float
    left: float
    right: float
    is_break: bool


@dataclass(frozen=True)
class TimeAxis:
    """The time axis: linear, except for breaks."""

    origin: datetime
    pieces: Sequence[Piece]

    def x(self, at: datetime) -> float:
        """The place of a time, in pixels."""
        seconds = (at - self.origin).total_seconds()
        for piece in self.pieces:
            if seconds <= piece.end:
                share = (seconds - piece.start) / (piece.end - piece.start) if piece.end > piece.start else 0
                return round(piece.left + min(1, max(0, share)) * (piece.right - piece.left), 1)
        return self.pieces[-1].right


def time_axis(bars: Sequence[Bar], left: float, right: float) -> TimeAxis:
    """The axis for these bars: long times without a call are short on it."""
    origin = min(bar.start for bar in bars)
    end = max((bar.end - origin).total_seconds() for bar in bars)
    spans = sorted(
        ((bar.start - origin).total_seconds(), (bar.end - origin).total_seconds())
        for bar in bars
        if bar.kind in ("model", "tool")
    )
    busy: list[list[float]] = [[0.0, 0.0]]
    for start, stop in (*spans, (end, end)):
        if start <= busy[-1][1]:
            busy[-1][1] = max(busy[-1][1], stop)
        else:
            busy.append([start, stop])
    total = sum(stop - start for start, stop in busy)
    gaps = [(before[1], after[0]) for before, after in pairwise(busy)]
    breaks = [gap for gap in gaps if gap[1] - gap[0] > max(1.0, LONG_GAP * total)]
    linear = end - sum(stop - start for start, stop in breaks)
    room = max(100.0, right - left - BREAK_WIDTH * len(breaks))
    scale = room / linear if linear > 0 else 0
    pieces: list[Piece] = []
    x = left
    at = 0.0
    for start, stop in (*breaks, (end, end)):
        following = x + (start - at) * scale
        pieces.append(Piece(at, start, x, following, is_break=False))
        if stop > start:
            pieces.append(Piece(start, stop, following, following + BREAK_WIDTH, is_break=True))
            following += BREAK_WIDTH
        x = following
        at = stop
    return TimeAxis(origin, pieces)


def lanes(by_name: Mapping[str, Sequence[Bar]]) -> Element | None:
    """What each speaker did over time: a lane each, with its turns, calls and waits."""
    bars = [bar for lane in by_name.values() for bar in lane]
    if not bars:
        return None
    axis = time_axis(bars, LABELS + 8, WIDTH - 16)
    width = max(WIDTH, round(axis.pieces[-1].right + 16))
    height = LANE_HEIGHT * len(by_name) + 34
    image = _image("Lanes over time", f"What {len(by_name)} speakers did, over time.", width, height)
    bottom = height - 30
    for piece in axis.pieces:
        if piece.is_break:
            image.append(h("rect", class_="break", x=piece.left, y=0, width=BREAK_WIDTH, height=bottom))
            label = duration(piece.end - piece.start)
            middle = (piece.left + piece.right) / 2
            image.append(h("text", label, class_="tick", x=middle, y=bottom + 26, text_anchor="middle"))
        else:
            _add_ticks(image, piece, bottom)
    for index, (name, lane) in enumerate(by_name.items()):
        y = index * LANE_HEIGHT
        image.append(h("line", class_="grid", x1=0, x2=width, y1=y + LANE_HEIGHT, y2=y + LANE_HEIGHT))
        image.append(_name(name, y + 18))
        for bar in sorted(lane, key=lambda bar: _ORDER.get(bar.kind, 0)):
            start = axis.x(bar.start)
            inset = 5 if bar.kind in ("turn", "wait") else 8
            drawn = h(
                "rect",
                h("title", f"{name} · {bar.title} · {duration((bar.end - bar.start).total_seconds())}"),
                class_=f"bar {bar.kind}",
                x=start,
                y=y + inset,
                width=max(1.5, axis.x(bar.end) - start),
                height=LANE_HEIGHT - 2 * inset,
                rx=2,
            )
            image.append(drawn)
    return image


_ORDER = {"turn": 0, "wait": 1, "model": 2, "tool": 3}
"""What is drawn later is above."""


def _add_ticks(image: Element, piece: Piece, bottom: float) -> None:
    """Times since the start, at round numbers of seconds."""
    span = piece.end - piece.start
    width = piece.right - piece.left
    if width < 24 or span <= 0:
        return
    step = _round_step(span / max(1, width / 110))
    tick = step * -(-piece.start // step)
    while tick <= piece.end:
        x = round(piece.left + (tick - piece.start) / span * width, 1)
        image.append(h("line", class_="grid", x1=x, x2=x, y1=0, y2=bottom))
        image.append(h("text", _tick_text(tick, step), class_="tick", x=x, y=bottom + 13, text_anchor="middle"))
        tick += step


def _tick_text(seconds: float, step: float) -> str:
    if step < 1:
        return f"{seconds:.2f} s" if step < 0.1 else f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 60 else duration(seconds)


def _round_step(least: float) -> float:
    """The next round number of seconds, minutes or hours."""
    steps = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600]
    return next((step for step in steps if step >= least), 3_600 * -(-least // 3_600))


def _name(name: str, y: float) -> Element:
    short = name if len(name) <= NAME_CHARACTERS else f"{name[: NAME_CHARACTERS - 1]}…"
    return (
        h("text", h("title", name), short, class_="name", x=0, y=y)
        if short != name
        else h("text", name, class_="name", x=0, y=y)
    )


def bars(title: str, rows: Sequence[tuple[str, Sequence[tuple[str, float]], str]]) -> Element:
    """Horizontal bars: of each row its name, the parts of its bar by class, and the text behind it."""
    largest = max((sum(value for _, value in parts) for _, parts, _ in rows), default=0) or 1
    room = 340
    width = LABELS + room + 140
    image = _image(title, "; ".join(f"{name}: {text}" for name, _, text in rows), width, LANE_HEIGHT * len(rows) + 4)
    for index, (name, parts, text) in enumerate(rows):
        y = index * LANE_HEIGHT
        image.append(_name(name, y + 18))
        x = float(LABELS)
        for part, value in parts:
            length = round(value / largest * room, 1)
            image.append(h("rect", class_=f"bar {part}", x=x, y=y + 6, width=length, height=LANE_HEIGHT - 12))
            x = round(x + length, 1)
        image.append(h("text", text, class_="value", x=x + 8, y=y + 18))
    return image


def time_by_turn(turns: Sequence[Turn], end: datetime) -> Element | None:
    """A column for each turn, in order: the time of its model calls, of its tool calls, and the rest."""
    columns = [_seconds_of(turn, end) for turn in turns]
    if not columns:
        return None
    size = -(-len(columns) // MAX_COLUMNS)
    groups = [columns[start : start + size] for start in range(0, len(columns), size)]
    means = [tuple(sum(values) / len(group) for values in zip(*group, strict=True)) for group in groups]
    largest = max(map(sum, means)) or 1
    room, high, left = 640, 150, 64
    image = _image("Time by turn", f"The seconds of {len(columns)} turns.", left + room + 8, high + 40)
    step = _round_step(largest / 3)
    mark = 0.0
    while mark <= largest:
        y = round(8 + high - mark / largest * high, 1)
        image.append(h("line", class_="grid", x1=left, x2=left + room, y1=y, y2=y))
        image.append(h("text", _tick_text(mark, step), class_="tick", x=left - 8, y=y + 4, text_anchor="end"))
        mark += step
    wide = room / len(means)
    bar_width = round(min(40.0, wide * 0.8), 2)
    for index, parts in enumerate(means):
        x = round(left + index * wide + (wide - bar_width) / 2, 1)
        y = 8.0 + high
        group = h("g", h("title", f"turn {index * size + 1}: {duration(sum(parts))}"))
        for name, value in zip(("model", "tool", "turn"), parts, strict=True):
            length = value / largest * high
            y -= length
            if length > 0.05:
                group.append(
                    h("rect", class_=f"bar {name}", x=x, y=round(y, 1), width=bar_width, height=round(length, 1))
                )
        image.append(group)
    first = "turn 1" if len(columns) > 1 else "the only turn"
    image.append(h("text", first, class_="tick", x=left, y=high + 26))
    if len(columns) > 1:
        label = f"turn {len(columns)}"
        image.append(h("text", label, class_="tick", x=left + room, y=high + 26, text_anchor="end"))
    if size > 1:
        note = f"each column is the mean of {size} turns"
        image.append(h("text", note, class_="tick", x=left + room / 2, y=high + 26, text_anchor="middle"))
    return image


def _seconds_of(turn: Turn, end: datetime) -> tuple[float, float, float]:
    """The seconds of a turn's model calls, of its tool calls, and the rest."""
    total = ((turn.end.at if turn.end else end) - turn.start.at).total_seconds()
    of_kind = {
        kind: sum(((call.ended or end) - call.started).total_seconds() for call in turn.calls if call.kind == kind)
        for kind in ("model", "tool")
    }
    model = min(total, of_kind["model"])
    tool = min(total - model, of_kind["tool"])  # calls at the same time take their sum
    return model, tool, max(0.0, total - model - tool)


def _image(title: str, description: str, width: float, height: float) -> Element:
    return h(
        "svg",
        class_="chart",
        role="img",
        aria_label=f"{title}: {description}",
        viewBox=f"0 0 {width:g} {height:g}",
        width=float(width),
        height=float(height),
    )
