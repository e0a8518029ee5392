"""Elements of pictures. All text in them is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


class Svg(str):
    """Text that is SVG already; Jinja takes it as it is."""

    __slots__ = ()

    def __html__(self) -> str:
        """Itself: it was escaped when it was made."""
        return str(self)


def element(name: str, *children: str, **attributes: object) -> Svg:
    """An element. ``class_`` is ``class``, ``text_anchor`` is ``text-anchor``; None is left out."""
    words = [
        f'{key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    ]
    inner = "".join(c if isinstance(c, Svg) else escape(clean(c)) for c in children)
    return Svg(f"<{' '.join([name, *words])}>{inner}</{name}>")


def picture(width: float, height: float, title: str, *children: Svg) -> Svg:
    """A whole picture, with a title for screen readers."""
    return _whole(width, height, title, children)


def stretched(width: float, height: float, title: str, *children: Svg) -> Svg:
    """A picture that fills the available width."""
    return _whole(width, height, title, children, preserveAspectRatio="none")


def _whole(width: float, height: float, title: str, children: Sequence[Svg], **more: object) -> Svg:
    return element(
        "svg",
        element("title", title),
        *children,
        viewBox=f"0 0 {_text(width)} {_text(height)}",
        width=width,
        height=height,
        role="img",
        aria_label=title,
        **more,
    )


def text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "t") -> Svg:
    """Text at a position, in the style ``kind`` of the page."""
    return element("text", words, x=x, y=y, text_anchor=anchor, class_=kind)


def rect(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> Svg:
    """A rectangle with a tooltip."""
    children = [element("title", title)] if title else []
    return element("rect", *children, x=x, y=y, width=width, height=height, class_=kind)


def line(x: float, y: float, x2: float, y2: float, kind: str) -> Svg:
    """A line from one place to another."""
    return element("line", x1=x, y1=y, x2=x2, y2=y2, class_=kind)


def cut(words: str, most: int) -> str:
    """Text cut at its beginning, because the end of a path is the most useful part."""
    return words if len(words) <= most else "…" + words[-(most - 1) :]


def clean(words: str) -> str:
    """Text without control characters, which HTML does not allow."""
    return "".join(c if c in "\n\t" or c.isprintable() else "�" for c in words)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return clean(str(value))
