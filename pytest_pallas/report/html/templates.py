"""The templates and the style of everything that is shown as HTML."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from pytest_pallas.report.drawings.svg import clean
from pytest_pallas.report.html.kernels import times

_HERE = Path(__file__).parent


def template(name: str) -> Any:
    """A template of this folder, by its file name; needs jinja2."""
    return _environment().get_template(name)


@functools.cache
def _environment() -> Any:
    """The environment of all templates, which compiles each of them once."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    environment.filters["times"] = times
    return environment


def text_of(name: str) -> str:
    """The text of a style or script of this folder."""
    return _HERE.joinpath(name).read_text("utf-8")
