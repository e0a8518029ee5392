"""Reports, built from records only: terminal, JSON, HTML; the transfer between processes."""

from __future__ import annotations

from typing import Annotated, Any

from pytest_pallas.decoding import Accepts


def checked_report(plain: Any) -> dict[str, Any]:
    """A serialized report of pytest from a file or another machine; see ``collect.checked_report``.

    Raises:
      DataError: it is none.
    """
    from pytest_pallas.report import collect  # imports JAX, which most processes do not need

    return collect.checked_report(plain)


#: A serialized report of pytest, in a message.
PlainReport = Annotated[Any, Accepts(checked_report)]
