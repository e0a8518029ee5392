"""``llms.txt``: the pages of the site with their titles and first sentences, for language models.

It is made of the tables of contents when the site is built, so that it is never stale. See
https://llmstxt.org.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_TREE = re.compile(r"```\{toctree\}\n(.*?)```", re.DOTALL)
_NO_PROSE = re.compile(
    r"^(```|`{4,}).*?^\1$|<!--.*?-->|^!\[.*?$|^<.*?$", flags=re.DOTALL | re.MULTILINE
)
_INCLUDED = re.compile(r"```\{include\} (\S+)\n```")


def llms_text(docs: Path) -> str:
    """Return the list of all pages that the tables of contents reach from ``index.md``."""
    title, summary = described(docs / "index.md")
    lines = [f"# {title}", "", f"> {summary}"]
    for tree in _TREE.findall((docs / "index.md").read_text(encoding="utf-8")):
        caption = re.search(r":caption: (.+)", tree)
        lines += ["", f"## {caption[1] if caption else title}", ""]
        lines += [line for name in names_in(tree) for line in entries(docs, name)]
    return "\n".join([*lines, ""])


def names_in(tree: str) -> list[str]:
    """Return the pages of a table of contents, without their own titles for it."""
    lines = [line for line in tree.splitlines() if line and not line.startswith(":")]
    return [re.sub(r".*<(.+)>", r"\1", line) for line in lines]


def entries(docs: Path, name: str) -> Iterator[str]:
    """Yield the line of a page, and those of the pages in its own tables of contents."""
    page = docs / f"{name}.md"
    title, summary = described(page)
    yield f"- [{title}]({name}.html): {summary}"
    folder = page.parent
    trees = _TREE.findall(page.read_text(encoding="utf-8"))
    inner = [other for tree in trees for other in names_in(tree)]
    if name == "kernels/README":  # whose table docs/conf.py adds
        inner = sorted(path.stem for path in folder.glob("*.md") if path != page)
    for other in inner:
        yield from entries(docs, (folder / other).relative_to(docs).as_posix())


def described(page: Path) -> tuple[str, str]:
    """Return the title of a page and the first sentence below it, as plain text."""
    text = page.read_text(encoding="utf-8")
    if included := _INCLUDED.search(text):
        text = (page.parent / included[1]).read_text(encoding="utf-8")
    text = _NO_PROSE.sub("", text)
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    assert title is not None, f"{page} has no title"
    paragraphs = re.split(r"\n\s*\n", text[title.end() :].strip("\n"))
    prose = next((part for part in paragraphs if part[:1] not in ("#", "|", "", "-", " ")), "")
    sentence = re.match(r"(.+?[.!?])(\s|$)", " ".join(prose.split()))
    return plain(title[1]), plain(sentence[1] if sentence else prose).rstrip(":") or title[1]


def plain(text: str) -> str:
    """Return a text without links, emphasis and marks of code."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", " ".join(text.split()))
