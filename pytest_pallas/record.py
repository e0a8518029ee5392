"""``Record``: the result of a check in a test, with its notes and aspects, and their JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict, get_args

from pallas_sim.coverage import Reached, merged
from pallas_sim.errors import Explanation, PallasError, explanation_of
from pallas_sim.findings import Finding, Text
from pytest_pallas.coverage import PlainReached, reached_from_json
from pytest_pallas.decoding import (
    Accepts,
    Checked,
    Count,
    Matching,
    Seconds,
    decode,
    jsonable,
)
from pytest_pallas.errors import facts_of

#: ``"reference"``: the evaluation of the kernel's reference. ``"run"``: the run of the kernel, such
#: as its backend or omitted parts. ``"result"``: the output. ``"tolerance"``: the limit that an
#: output passed by. ``"mutants"``: marks and checks in a mutation run. ``""``: a note of a
#: project's check or backend.
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


def note_of(note: Note | str) -> Note:
    """Return the note; a plain string becomes a note of no kind."""
    return note if isinstance(note, Note) else Note(note)


def of_kind(notes: Iterable[Note], kind: Kind) -> list[Note]:
    """Return the notes of one kind."""
    return [note for note in notes if note.kind == kind]


# Aspects: the choices of a draw, such as a dim or an option, as data.


class Aspect(NamedTuple):
    """A choice of each draw.

    Attributes:
      role: ``dtype``, ``values``, ``dim``, ``option``, ``tuning`` or ``mesh``.
      name: of the dim, keyword argument or axis; "" for dtypes and values.
    """

    role: str
    name: str = ""

    def __str__(self) -> str:
        """For messages: ``dim k``."""
        return f"{self.role} {self.name}" if self.name else self.role


DTYPE, VALUES = Aspect("dtype"), Aspect("values")


def aspects_to_json(choices: Mapping[Aspect, Iterable[str]]) -> list[dict[str, Any]]:
    """Return words by aspect for JSON: a list of objects with role, name and words."""
    return [{**aspect._asdict(), "words": list(group)} for aspect, group in choices.items()]


def aspects_from_json(data: Iterable[Mapping[str, Any]]) -> dict[Aspect, tuple[str, ...]]:
    """Return the words by aspect that ``aspects_to_json`` was given."""
    return {Aspect(plain["role"], plain["name"]): tuple(plain["words"]) for plain in data}


class PlainWords(TypedDict):
    """Words of an aspect, as ``to_json`` gives them."""

    role: str
    name: str
    words: list[str]


class PlainInputs(TypedDict):
    """Coverage of inputs, as ``checks.inputs`` gives it.

    Pairs and triples of choices are counted: those that came together, and those that may.
    """

    shapes: list[str]
    signatures: Count
    pairs: NotRequired[tuple[Count, Count]]
    triples: NotRequired[tuple[Count, Count]]
    dtypes: list[str]
    tried: list[PlainWords]
    never: list[PlainWords]


# The record of a check in a test, and its JSON.


#: Version of the JSON form; see "Results" in docs/reference.md.
SCHEMA = 2

#: The values of a record's ``outcome``.
OUTCOMES = ("passed", "failed", "skipped", "xfailed", "xpassed")

_WORDS = f"one of {', '.join(OUTCOMES)}"
_Outcome = Annotated[str, Matching("|".join(OUTCOMES), _WORDS)]
_OutcomeOrNone = Annotated[str, Matching("|".join(("", *OUTCOMES)), f"empty or {_WORDS}")]

#: The sizes of a mesh, by axis.
type Mesh = Mapping[str, Count]

# What is plain in a record, and checked when it is read.
_PlainExplanation = Annotated[Mapping[str, Any], Checked(lambda: Explanation)]
_ExplanationOrNone = Annotated[Mapping[str, Any], Checked(lambda: Explanation | _Empty)]
_PlainFinding = Annotated[Mapping[str, Any], Checked(lambda: Finding)]
_PlainVerdict = Annotated[Mapping[str, Any], Checked(lambda: MutantVerdict)]
_PlainInputs = Annotated[Mapping[str, Any], Checked(lambda: PlainInputs | _Empty)]
_PlainReached = Annotated[Mapping[str, Any], Checked(lambda: PlainReached)]
_PlainSync = Annotated[Mapping[str, Any], Checked(lambda: _threshold())]
PlainCompiled = Annotated[
    Mapping[str, Any], Checked(lambda: _compiler().CompileReport, lambda r: _compiler().to_json(r))
]


_PlainGridFinding = Annotated[Mapping[str, Any], Checked(lambda: _grid_finding())]


def _grid_finding() -> Any:
    """Return the class of a finding of a grid, whose module imports numpy."""
    from pytest_pallas.grid.findings import GridFinding

    return GridFinding


def _compiler() -> Any:
    """Return the module of compilers' reports, which imports JAX."""
    from pytest_pallas.compile import service as report

    return report


def _threshold() -> Any:
    """Return the class of a group of sites, whose module imports numpy."""
    from pallas_sim import SyncThreshold

    return SyncThreshold


class _Empty(TypedDict):
    """An object without fields."""


class _Other(TypedDict):
    """Another failure of the same check; ``distinct``: certainly of another cause."""

    message: Text
    distinct: NotRequired[bool]
    explanation: NotRequired[_PlainExplanation]
    findings: NotRequired[tuple[_PlainFinding, ...]]
    grid_findings: NotRequired[tuple[_PlainGridFinding, ...]]


@dataclass(frozen=True, kw_only=True)
class Host:
    """One process of a program of several processes that ran a test, and the host that it ran on.

    Attributes:
      process: the number of the process, ``jax.process_index()``.
      name: the host name.
      outcome: the outcome of the test in this process, one of ``OUTCOMES``; "" if the process ended
        without one.
      because_of: the processes whose failure made the test fail in this one, which is otherwise
        right; empty for a failure of its own.
    """

    process: Count
    name: str
    outcome: _OutcomeOrNone = ""
    because_of: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NotApplicable:
    """A check that does not apply to a kernel on a backend.

    Attributes:
      test: its pytest node id, also if there is no test.
      kernel: name of the spec.
      family: family of the spec.
      check: name of the check.
      backend: backend label.
      mesh: axis name to size, or empty for a single device.
      requirement: the reason, such as ``"no example aliases an input"``.
      found: ``"collection"`` if there is no test, ``"run"`` if the test found out.
    """

    test: str
    kernel: str
    family: str
    check: str
    backend: str
    mesh: Mesh = dataclasses.field(default_factory=dict[str, int])
    requirement: Text
    found: str = "collection"


@dataclass(frozen=True, kw_only=True)
class Orders:
    """How many calls of a check compute the same in every order of their threads and copies.

    Attributes:
      proved: calls that do, by the proof of one run, or as every order was run.
      wrong: calls that do not: another order gives other values, an error or a finding.
      open: calls of which not every order was run.
      unconfirmed: those of the wrong calls with a finding of the proof that no run showed.
      runs: how many runs were made, of all calls.
      classes: how many different orders they had: those that differ in steps that commute are one.
      tried: those of them that were of open calls.
      left: how many more the open calls are known to have.
      most: the most runs that an open call was allowed.
      reasons: what had to be tried in several orders, each in a few words with its line.
      stopped: why open calls were given up before the budget was spent.
    """

    proved: Count = 0
    wrong: Count = 0
    open: Count = 0
    unconfirmed: Count = 0
    runs: Count = 0
    classes: Count = 0
    tried: Count = 0
    left: Count = 0
    most: Count = 0
    reasons: tuple[Text, ...] = ()
    stopped: tuple[Text, ...] = ()

    @property
    def calls(self) -> int:
        """The number of calls."""
        return self.proved + self.wrong + self.open


def orders_of(several: Iterable[Orders | None]) -> Orders | None:
    """Add up; None of nothing."""
    present = [orders for orders in several if orders is not None]
    if len(present) < 2:
        return present[0] if present else None
    names = ("proved", "wrong", "open", "unconfirmed", "runs", "classes", "tried", "left")
    fields: dict[str, Any] = {
        name: sum(getattr(orders, name) for orders in present) for name in names
    }
    for name in ("reasons", "stopped"):
        texts = (text for orders in present for text in getattr(orders, name))
        fields[name] = tuple(dict.fromkeys(texts))
    return Orders(**fields, most=max(orders.most for orders in present))


# A session keeps all of them, and a dict of so many attributes has four times the bytes.
@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """The result of one check of one kernel on one backend.

    Attributes:
      test: the pytest node id.
      kernel: name of the spec, or of the function under test.
      family: family of the spec, or "" for a user-written test.
      check: name of the check.
      backend: backend label, such as ``"tpu-interpret:v6e"``.
      mesh: axis name to size, or empty for a single device.
      outcome: one of ``OUTCOMES``.
      reason: why it was skipped or is expected to fail.
      requirement: the reason why the check applies to no example; empty if it applies.
      stopped_by: the test whose kernel raised, so that this one did not run; or empty.
      source: ``file:line`` of the kernel's function; empty unless failed, xfailed or xpassed.
      error_type: the class of the error, such as ``"MismatchError"``; empty unless failed or
        xfailed.
      message: the full error message, likewise.
      explanation: the message as data, from ``Explanation.to_json``.
      findings: findings of a failure, such as a race or a deadlock, from ``Finding.to_json``.
      grid_findings: those of the kernel's grid and blocks, as ``GridFinding`` has them.
      others: failures of the same check that look different, each with ``message``,
        ``explanation``, ``findings``, and whether it is ``distinct``: certainly of another cause.
      examples: number of executed examples.
      error: worst error against the oracle, in ulps of the output's scale; None if not measured.
      baseline: the worst error of the jnp baseline, likewise.
      multiple: the worst error as a multiple of the baseline's.
      seconds: wall time of the whole check.
      kernel_seconds: the part of it spent tracing, compiling and running the kernel.
      seed: seed of the draws.
      replay: the command that runs the failing example again.
      script: path of the script that repeats the failure; "" if there is none.
      example: path of the file for ``--pallas-replay``; "" if there is none.
      compiled: the report of each compiled program, from ``compilers.report.to_json``; empty on
        other backends.
      notes: additional facts, such as the backend that ran instead of the simulator.
      unverified: undocumented behavior of the simulated chip that the kernel used.
      inputs: coverage of the declared inputs, from ``checks.inputs.to_json``; empty if nothing was
        drawn.
      signatures: digests of the distinct shapes that the check ran on, each of the shapes, dtypes
        and static arguments of a call (``checks.inputs.Inputs.signature``).
      goldens: how many goldens were ``recorded``, ``replaced``, left ``unchanged``, ``compared``,
        ``different``, ``missing`` or ``lost``.
      used_goldens: names of the goldens that the outputs were compared with.
      mutants: the verdict on each mutant of the kernel, from ``mutation_runner.verdict.to_json``;
        empty without ``--pallas-mutate``.
      pictures: pictures of a failure, from ``report.pictures``: a map and a histogram of errors,
        the programs with wrong elements, the errors of the examples, masks and ids among the
        arguments, the blocks of a grid, the source code around findings. Empty otherwise.
      hosts: the processes that ran the test together, by number; empty outside of a program of
        several processes.
      synchronization: which waits, signals and barriers the kernel needs, from how many devices on:
        a ``pallas_sim.SyncThreshold`` for each group of sites; empty but for that check.
      coverage: what of the kernel ran on simulators, by point, from ``coverage.reached_to_json``.
      unreached: reasons why a part of it need not run, as in ``KernelSpec.unreached``.
      simulators: those that the spec claims, such as ``"tpu-sim"``; empty without ``unreached``.
      orders: in how many orders the calls of a sanitizer of schedules ran on a simulator; None of
        other checks.
      witness: of a failure, the order in which it shows, as ``--pallas-witness`` takes it; "" if
        that is the plain order, or there is none.
    """

    test: str
    kernel: str
    check: str
    backend: str
    outcome: _Outcome
    family: str = ""
    mesh: Mesh = dataclasses.field(default_factory=dict[str, int])
    reason: Text = ""
    requirement: Text = ""
    stopped_by: str = ""
    source: str = ""
    error_type: str = ""
    message: Text = ""
    explanation: _ExplanationOrNone = dataclasses.field(default_factory=dict[str, Any])
    findings: tuple[_PlainFinding, ...] = ()
    grid_findings: tuple[_PlainGridFinding, ...] = ()
    others: tuple[_Other, ...] = ()
    examples: Count = 0
    error: float | None = None
    baseline: float | None = None
    multiple: float | None = None
    seconds: Seconds = 0.0
    kernel_seconds: Seconds = 0.0
    seed: int = 0
    replay: Text = ""
    script: str = ""
    example: str = ""
    compiled: tuple[PlainCompiled, ...] = ()
    notes: tuple[Note, ...] = ()
    unverified: tuple[Text, ...] = ()
    inputs: _PlainInputs = dataclasses.field(default_factory=dict[str, Any])
    signatures: tuple[str, ...] = ()
    goldens: Mapping[str, Count] = dataclasses.field(default_factory=dict[str, int])
    used_goldens: tuple[str, ...] = ()
    pictures: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    mutants: tuple[_PlainVerdict, ...] = ()
    hosts: tuple[Host, ...] = ()
    synchronization: tuple[_PlainSync, ...] = ()
    coverage: tuple[_PlainReached, ...] = ()
    unreached: Mapping[str, Text] = dataclasses.field(default_factory=dict[str, str])
    simulators: tuple[str, ...] = ()
    orders: Orders | None = None
    witness: str = ""


#: What became of a mutant. ``killed``: a check failed. ``survived``: none did. ``equivalent``: it
#: is the same program, or the spec marks it and no check failed. ``untried``: time was over, or it
#: could not be made.
VerdictStatus = Literal["killed", "survived", "equivalent", "untried"]


@dataclass(frozen=True, kw_only=True)
class MutantVerdict:
    """The verdict on a mutant.

    Attributes:
      key: identifies the mutant.
      operator, change, kernel, part: as in ``mutation.Mutant``.
      where: ``file:line`` of the mutated code.
      called_from: ``file:line`` of its callers, the innermost first, in short.
      source: the line of code.
      callers: the lines of code of its callers.
      status: see ``VerdictStatus``.
      by: the check that killed it, or the test, spec or run.
      on: the backend of that check, with the sizes of its mesh.
      how: the kind of failure, such as ``"MismatchError"``.
      examples: number of examples that ran on it.
      seconds: the time of these examples.
      reason: why it is equivalent or did not run.
      marked: whether the spec marks it as equivalent.
    """

    key: str
    operator: str
    change: Text
    kernel: str
    part: str
    where: str
    source: str
    status: VerdictStatus
    called_from: tuple[str, ...] = ()
    callers: tuple[str, ...] = ()
    by: str = ""
    on: str = ""
    how: str = ""
    examples: Count = 0
    seconds: Seconds = 0.0
    reason: Text = ""
    marked: bool = False


#: Outcomes that fail a run.
BAD = ("failed", "xpassed")

#: The words of ``status_of``, as pytest's last line and the page have them, worst first.
STATUSES = ("failed", "xpassed", "xfailed", "passed", "skipped", "not run", "not applicable")


def status_of(record: Record) -> str:
    """Return the outcome of a record in reports, which know three kinds of skipped checks."""
    if record.outcome != "skipped":
        return record.outcome
    if record.requirement:
        return "not applicable"
    return "not run" if record.stopped_by else "skipped"


def not_applicable_of(record: Record) -> NotApplicable | None:
    """Return the entry of a record whose check applies to no example, or None."""
    if record.outcome != "skipped" or not record.requirement:
        return None
    return NotApplicable(
        test=record.test,
        kernel=record.kernel,
        family=record.family,
        check=record.check,
        backend=record.backend,
        mesh=record.mesh,
        requirement=record.requirement,
        found="run",
    )


def to_json(record: Record) -> dict[str, Any]:
    """Return a record as plain JSON values; infinite and undefined numbers become strings."""
    return jsonable(record)


def from_json(plain: Mapping[str, Any]) -> Record:
    """Return the record from ``to_json``.

    Raises:
      DataError: it is none.
    """
    return decode(Record, plain)


def record_explanation(record: Record) -> Explanation:
    """Return the explanation of a failure, or the message as one."""
    if record.explanation:
        return decode(Explanation, record.explanation)
    return explanation_of(record.message)


def reached_by(records: Iterable[Record]) -> tuple[Reached, ...]:
    """Return what the kernels of some records reached together.

    Raises:
      DataError: a record has something else.
    """
    return merged(map(reached_from_json, record.coverage) for record in records)


#: Limit on the findings in the record of a failure.
_FINDINGS = 16


def error_fields(error: BaseException) -> dict[str, Any]:
    """Return the fields of a record about its failure: the message and data of an error."""
    kind = type(error).__name__
    if not isinstance(error, PallasError):
        text = f"{kind}: {error}"
        return {
            "error_type": kind,
            "message": text,
            "explanation": explanation_of(text).to_json(),
        }

    def plain(error: PallasError) -> dict[str, Any]:
        explanation = error.explanation or explanation_of(str(error))
        findings = tuple(finding.to_json() for finding in error.findings[:_FINDINGS])
        analysis = facts_of(error).analysis
        of_grid = () if analysis is None else analysis.findings[:_FINDINGS]
        return {
            "message": str(error),
            "explanation": explanation.to_json(),
            "findings": findings,
            "grid_findings": tuple(map(dataclasses.asdict, of_grid)),
        }

    others = (
        {**plain(other), "distinct": facts_of(other).distinct} for other in facts_of(error).others
    )
    return {"error_type": kind, **plain(error), "others": tuple(others)}
