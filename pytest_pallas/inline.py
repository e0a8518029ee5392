"""Objects that a notebook shows with pictures."""

from __future__ import annotations

import importlib

#: The function that draws them. The report is a layer above; a notebook imports it.
_DRAWN_BY = "pytest_pallas.report.inline", "html_of"


class Inline:
    """An object that Jupyter shows as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """The object as HTML; None without jinja2 (``pytest-pallas[report]``), for plain text."""
        module, name = _DRAWN_BY
        return getattr(importlib.import_module(module), name)(self)
