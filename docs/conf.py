"""The site of these pages: ``uv run --group docs sphinx-build -W docs build/docs``.

Pages are written to be read where they lie, too: links are relative paths in the repository. Here
they become links between pages, and files that are no pages can be downloaded.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.domains.python import PyObject

import pytest_pallas

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

from llms import llms_text  # noqa: E402

ROOT = DOCS.parent

project = "pytest-pallas"
author = copyright = "The pytest-pallas developers"
version = release = pytest_pallas.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
html_theme = "furo"
html_title = f"pytest-pallas {release}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
# Options begin with two dashes, and words in quotes are code.
smartquotes = False
# As on GitHub: ``#a-timeline`` is the heading "A timeline".
myst_heading_anchors = 4
# docs/broken.md has one heading a kernel, below its title.
suppress_warnings = ["myst.header"]
# What is copied is the command, without the prompt and without what it prints.
copybutton_prompt_text = "$ "

add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_use_ivar = True
python_maximum_signature_line_length = 90
python_use_unqualified_type_names = True

nitpicky = True
nitpick_ignore_regex = [
    # Of other packages, whose indexes lie on the web: a build needs no network.
    (r"py:.*", r"(collections|hypothesis|jax|np|numpy|pathlib|pytest|types|typing|weakref)\..*"),
    (
        r"py:class",
        r"Callable|Collection|Iterator|Mapping|Sequence|WeakKeyDictionary|deque|Mesh"
        r"|SearchStrategy|os\.PathLike",
    ),
]
#: Types of the plugin that public ones hold and that no page describes: aliases, and internals.
_INNER = (
    "backends.protocol.Observer",
    "checks.KernelRequirement",
    "checks.Program",
    "checks.Run",
    "checks.context.ComparedOutputs",
    "checks.context.ComparisonPeer",
    "checks.context.Related",
    "compile.costs.RecordedCosts",
    "decoding.Accepts",
    "decoding.Between",
    "draw.arguments.Declared",
    "draw.meshes.Axes",
    "draw.meshes.MeshAxes",
    "draw.arguments.VariantSource",
    "draw.signatures.ArraysArguments",
    "draw.sizes.Constraint",
    "fixture_types.CheckKeywords",
    "fixture_types.Peers",
    "fixture_types.SpecKeywords",
    "grid.model.GridWindow",
    "judge.oracle.ExpectedCache",
    "judge.tolerance.AnyTolerance",
    "judge.tolerance.Scalar",
    "mutate.model.EnclosingJaxpr",
    "pytest_session.PytestSession",
    "record.Mesh",
    "record._Other",
    "record._known",
    "report.section.Lines",
    "run.collection.Suite",
    "spec.AnyRelation",
    "spec.When",
)
#: The same of the simulator.
_INNER_OF_SIMULATOR = (
    "chips.Accumulation",
    "compat.grids.GridFacts",
    "compat.source.Spot",
    "errors.Inline",
    "evaluation.Program",
    "evaluation.Step",
    "findings.Lines",
    "findings.SourceLine",
    "inspector.Inspector",
    "inspector._Watched",
    "coverage.Kind",
    "coverage.Need",
    "exploration.past.ReasonKind",
    "exploration.search.NewRun",
    "exploration.search.Verdict",
    "machine.Device",
    "machine.Engines",
    "machine.StepObserver",
    "counts.Coverage",
    "inspector.RecordedLoad",
    "recording.Copy",
    "recording.Recording",
    "recording.Semaphore",
    "simulation.Value",
    "sites.SiteLog",
    "timeline.Arrow",
    "timeline.CopySpan",
    "timeline.TimelineSpan",
    "timeline._Given",
)
nitpick_ignore = [
    ("py:class", name)
    for package, names in (("pytest_pallas", _INNER), ("pallas_sim", _INNER_OF_SIMULATOR))
    for inner in names
    for name in (f"{package}.{inner}", inner.rpartition(".")[2])
] + [("py:exc", "DataError")]

#: Pages that are written elsewhere, by where they are on the site.
PAGES = {
    ROOT / "AGENTS.md": "project/agents",
    ROOT / "ARCHITECTURE.md": "architecture",
    ROOT / "CHANGELOG.md": "project/changelog",
    ROOT / "CONTRIBUTING.md": "project/contributing",
    ROOT / "README.md": "index",
    ROOT / "SECURITY.md": "project/security",
    ROOT / "examples/downstream": "downstream",
    ROOT / "examples/downstream/README.md": "downstream",
}

#: A link to a page or file, with its text.
_LINK = re.compile(r"\[([^\[\]]*)\]\((?!\w+:)([^()#\s]+)(#[\w-]+)?\)")

#: The text of a link that is the path of a page: its title stands there instead.
_PATH = re.compile(r"`?[\w/.-]+\.md`?")


def link_pages(text: str, folder: Path) -> str:
    """Let relative links of a text that lies in ``folder`` lead to pages and files of the site."""

    def changed(found: re.Match[str]) -> str:
        words, path, anchor = found[1], found[2], found[3] or ""
        target = (folder / path).resolve()
        if not target.exists():
            return found[0]
        page = DOCS / f"{PAGES[target]}.md" if target in PAGES else target
        words = "" if _PATH.fullmatch(words) else words
        return f"[{words}](/{os.path.relpath(page, DOCS)}{anchor})"

    return _LINK.sub(changed, text)


def on_source_read(app: Sphinx, docname: str, source: list[str]) -> None:
    """Links of a page of docs/; and the course, whose first page lists the others in a table."""
    source[0] = link_pages(source[0], Path(app.env.doc2path(docname)).parent)
    if docname == "kernels/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n[0-9]*\nperformance\napi\n```\n"


def on_include_read(app: Sphinx, path: Path, parent: str, source: list[str]) -> None:
    """Links of a page that lies elsewhere."""
    source[0] = link_pages(source[0], (DOCS / path).parent)


def on_signature(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, arguments: str, returned: str
) -> tuple[str | None, str | None]:
    """Arguments as they are given: fixtures and their types have none, a factory is a default."""
    if name.startswith("pytest_pallas.fixtures.") or getattr(thing, "_is_protocol", False):
        return "", ""
    plain = re.sub(r"<(factory|function ([^<>]|<lambda>)*)>", "...", arguments or "")
    return plain or arguments, returned


def on_docstring(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Types of fields by their last name."""
    for number, line in enumerate(lines):
        if line.startswith(":vartype"):
            lines[number] = re.sub(r"\b(collections\.abc|typing)\.", "", line)


def on_doctree(app: Sphinx, doctree: nodes.document) -> None:
    """Between a field and what it is stands a dash."""
    for text in [text for text in doctree.findall(nodes.Text) if text == " -- "]:
        text.parent.replace(text, nodes.Text(" \u2013 "))


def on_finished(app: Sphinx, error: Exception | None) -> None:
    """Write the list of pages for language models."""
    if error is None and app.builder.name == "html":
        (Path(app.outdir) / "llms.txt").write_text(llms_text(DOCS), encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Connect the above."""
    app.connect("build-finished", on_finished)
    app.connect("autodoc-process-docstring", on_docstring, priority=600)  # after napoleon
    app.connect("doctree-read", on_doctree)
    app.connect("source-read", on_source_read)
    app.connect("include-read", on_include_read)
    app.connect("autodoc-process-signature", on_signature)
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Fields"
