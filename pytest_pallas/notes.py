"""Notes: what a reader of a record should know besides its numbers, as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

#: ``"reference"``: how the kernel's reference was evaluated. ``"run"``: by what the kernel was run,
#: or what was left out. ``"result"``: of the answer. ``"mutants"``: of marks and checks in a
#: mutation run. ``""``: of a check or backend that a project adds, or of an older record.
Kind = Literal["reference", "run", "result", "mutants", ""]


@dataclass(frozen=True)
class Note:
    """Something that a reader of a record should know.

    Attributes:
      text: one sentence, without the names of kernel, check and backend.
      kind: what it is about; see ``Kind``.
    """

    text: str
    kind: Kind = ""

    def __str__(self) -> str:
        """The sentence."""
        return self.text


def note_of(given: Note | str) -> Note:
    """A note; a plain string is one of no kind."""
    return given if isinstance(given, Note) else Note(given)


def to_json(note: Note) -> dict[str, str]:
    """A note as JSON has it."""
    return {"kind": note.kind, "text": note.text}


def from_json(data: Mapping[str, Any] | str) -> Note:
    """The note that ``to_json`` was given; records of schema 1 have plain strings."""
    if isinstance(data, str):
        return Note(data)
    kind: Any = data["kind"]
    return Note(data["text"], kind if kind in get_args(Kind) else "")


def of_kind(notes: Iterable[Note], kind: Kind) -> list[Note]:
    """The notes of one kind."""
    return [note for note in notes if note.kind == kind]
