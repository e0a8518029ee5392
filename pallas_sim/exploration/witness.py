"""``Witness``: the order of a run, as data, as one short word that replays it, and in lines."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pallas_sim.chips import TARGETS
from pallas_sim.errors import OptionError
from pallas_sim.exploration.past import Actor, ExploredStep

#: Of the meaning of the choices: it rises when the same ones may lead to another run.
VERSION = 1

#: More choices than any run has; a text that names one beyond is a mistake.
_MOST = 10_000_000

_TEXT = re.compile(r"(\d+)(m?)(i?)-(\w+)-([0-9a-f]{8})((?:-\d+\.\d+)*)", re.ASCII)


@dataclass(frozen=True)
class Witness:
    """The order of a run.

    ``str(witness)`` is ``VERSION-TARGET-PROGRAM`` and ``-SKIPPED.CHOICE`` for each choice that is
    not the plain one, such as ``1-v6e-3fa29c1d-12.1-0.2``: choices 0 twelve times, 1, and 2.

    Attributes:
      program: digest of the traced call, see ``digest_of``.
      target: name of the chip.
      choices: who took the next step wherever several could, by number; 0 is the plain choice, see
        ``explorer.Explorer``. All after the last one are 0.
      version: of the meaning of the choices.
      memory: whether programs of a GPU stop before plain accesses to memory, too.
      impatient: whether threads wait that would see the same again: see ``explorer.Explorer``.
    """

    program: str
    target: str
    choices: tuple[int, ...] = ()
    version: int = VERSION
    memory: bool = False
    impatient: bool = False

    def __str__(self) -> str:
        """The text of it."""
        steps = "".join(f"-{skipped}.{choice}" for skipped, choice in self._switches())
        kind = "m" * self.memory + "i" * self.impatient
        return f"{self.version}{kind}-{self.target}-{self.program}{steps}"

    @property
    def switches(self) -> int:
        """How many choices are not the plain one."""
        return sum(choice != 0 for choice in self.choices)

    def _switches(self) -> Iterator[tuple[int, int]]:
        skipped = 0
        for plain, group in groupby(self.choices, lambda choice: not choice):
            if plain:
                skipped = len(list(group))
                continue
            for choice in group:
                yield skipped, choice
                skipped = 0

    @classmethod
    def parse(cls, text: str) -> Witness:
        """Return the witness of a text.

        Raises:
          OptionError: it is the text of none, or of one of another version.
        """
        shown = text if len(text) < 80 else f"{text[:77]}..."
        version, dash, _ = text.partition("-")
        if dash and version.isdecimal() and int(version) != VERSION:
            raise OptionError(
                f"witness {shown!r} has version {version}, and this simulator replays version "
                f"{VERSION}: explore the call again"
            )
        match = _TEXT.fullmatch(text)
        if match is None:
            raise OptionError(
                f"{shown!r} is no witness: it is {VERSION}-TARGET-PROGRAM-SKIPPED.CHOICE-..., "
                "as an exploration prints it"
            )
        _, memory, impatient, target, program, steps = match.groups()
        if target not in TARGETS:
            raise OptionError(f"witness {shown!r} is for {target!r}, which is no target")
        choices: list[int] = []
        for step in steps.split("-")[1:]:
            skipped, choice = map(int, step.split("."))
            if len(choices) + skipped >= _MOST:
                raise OptionError(f"witness {shown!r} has more than {_MOST:,} choices")
            choices += [*[0] * skipped, choice]
        kinds = {"memory": bool(memory), "impatient": bool(impatient)}
        return cls(program, target, tuple(choices), **kinds)

    def is_of(self, jaxpr: Any, target: str) -> bool:
        """Return whether it is an order of a traced call on a chip."""
        return (self.version, self.program, self.target) == (VERSION, digest_of(jaxpr), target)

    def require(self, program: str, target: str) -> None:
        """Reject a call that it is not a witness of.

        Raises:
          OptionError: the call is another one, or runs on another chip.
        """
        if self.version != VERSION:
            raise OptionError(
                f"the witness has version {self.version}, and this simulator replays version "
                f"{VERSION}: explore the call again"
            )
        if target != self.target:
            raise OptionError(
                f"the witness is for {self.target}, and the call runs on {target}: explore it "
                f"there, or run it on {self.target}"
            )
        if program != self.program:
            raise OptionError(
                f"the witness is of call {self.program}, and this is call {program}: the kernel, "
                "its shapes or its mesh are others; explore it again"
            )


def digest_of(jaxpr: Any) -> str:
    """Return the digest of a traced call: of its equations, shapes and dtypes, not of its lines."""
    closed = getattr(jaxpr, "jaxpr", jaxpr)
    text = f"{closed}{[str(var.aval) for var in closed.invars]}"
    plain = re.sub(r"0x[0-9a-f]+| at \S+:\d+", "", text)
    return hashlib.blake2b(plain.encode(), digest_size=4).hexdigest()


# An order in lines.


@dataclass(frozen=True)
class Turn:
    """Somebody was passed over, or went on after that.

    Attributes:
      step: before which step of the run.
      actor: who.
      late: whether it was passed over.
    """

    step: int
    actor: Actor
    late: bool


#: How many lines tell an order.
_LINES = 16

#: What a step does, in words.
_VERBS = {
    "add": "adds {} to",
    "subtract": "adds {} to",
    "take": "takes {} from",
    "peek": "sees {} on",
    "look": "looks at",
    "change": "reads and changes",
    "arrive": "arrives at",
    "pass": "passes",
}

#: Of operations that no line of the kernel names.
_NOWHERE = ("", "")


def story_of(
    turns: Sequence[Turn], steps: Sequence[ExploredStep], name_of: Callable[[Actor], str]
) -> tuple[str, ...]:
    """Tell in lines what the steps of a run did, from where it leaves the plain order.

    Args:
      turns: of the run.
      steps: all of them.
      name_of: gives what a reader calls an actor.
    """
    if not turns:
        return ()
    at: dict[int, list[Turn]] = {}
    for turn in turns:
        at.setdefault(turn.step, []).append(turn)
    first = turns[0].step
    last = max((turn.step for turn in turns if not turn.late), default=len(steps))
    lines = [f"{first} steps in the plain order, then:"]
    for number, step in enumerate(steps[first : last + 1], first):
        for turn in at.get(number, ()):
            name = name_of(turn.actor)
            lines.append(f"> {name} {'is late' if turn.late else 'goes on, after all others'}")
        done = [
            (_VERBS[kind].format(amount), step.where[kind, what])
            for (kind, what), amount in step.operations.items()
            if kind in _VERBS and step.where[kind, what] != _NOWHERE
        ]
        done += [
            (_VERBS[access.atomic if access.atomic == "look" else "change"], access.where)
            for access in step.accesses
            if access.atomic
        ]
        if done:
            acts = ", ".join(f"{verb} {name} ({brief(line)})" for verb, (name, line) in done)
            lines.append(f"  {name_of(step.actor)}: {acts}")
    if len(lines) > _LINES:
        half = _LINES // 2
        lines[half:-half] = [f"  ... {len(lines) - 2 * half} more"]
    return tuple(lines)


def brief(line: str) -> str:
    """Return ``file:line`` without the folder."""
    return line.rpartition("/")[2]
