"""Notes: additional facts of a record, as data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pallas_sim.findings import Text
from pytest_pallas.decoding import Accepts

#: ``"reference"``: the evaluation of the kernel's reference. ``"run"``: the run of the kernel, such
#: as its backend or omitted parts. ``"result"``: the output. ``"tolerance"``: the limit that an
#: output passed by. ``"mutants"``: marks and checks in a mutation run. ``""``: a note of a
#: project's check or backend, or of an older record.
Kind = Literal["reference", "run", "result", "tolerance", "mutants", ""]


def _known(kind: Any) -> Any:
    return "" if isinstance(kind, str) and kind not in get_args(Kind) else kind


@dataclass(frozen=True)
class Note:
    """An additional fact of a record.

    Attributes:
      text: one sentence, without the names of kernel, check and backend.
      kind: its subject; see ``Kind``.
    """

    text: Text
    kind: Annotated[Kind, Accepts(_known)] = ""

    def __str__(self) -> str:
        """The sentence."""
        return self.text


def note_of(given: Note | str) -> Note:
    """The note; a plain string becomes a note of no kind."""
    return given if isinstance(given, Note) else Note(given)


def to_json(note: Note) -> dict[str, str]:
    """A note as plain JSON values."""
    return {"kind": note.kind, "text": note.text}


#: A note as ``to_json`` gives it; records of schema 1 have plain strings.
PlainNote = Annotated[
    Note, Accepts(lambda plain: {"text": plain} if isinstance(plain, str) else plain)
]


def of_kind(notes: Iterable[Note], kind: Kind) -> list[Note]:
    """The notes of one kind."""
    return [note for note in notes if note.kind == kind]
