"""What ``verify`` says of a candidate: verdicts, counterexamples and a score, as data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: The stages in their order, and the part of the score that each is worth.
WEIGHTS: Mapping[str, float] = {
    "imports": 0.05,
    "traces": 0.05,
    "kernel": 0.10,
    "compiles": 0.05,
    "given": 0.25,
    "hidden": 0.30,
    "ordered": 0.10,
    "deterministic": 0.05,
    "gradients": 0.05,
    "cost": 0.0,
}

#: What each stage asks.
QUESTIONS: Mapping[str, str] = {
    "imports": "is the module imported, and has it the function?",
    "traces": "does JAX trace the function, to a program that is data?",
    "kernel": "does a Pallas kernel do the work?",
    "compiles": "does the chip's compiler accept it?",
    "given": "is it right for the first shapes?",
    "hidden": "is it right for shapes, options and dtypes that it has not seen?",
    "ordered": "is it free of races, and does every schedule give the same?",
    "deterministic": "do two runs give the same bits?",
    "gradients": "are its gradients right?",
    "cost": "what does it cost?",
}

#: Lines of a message that the text of a report has; its JSON has all.
_MOST_DETAILS = 4

Verdict = Literal["passed", "failed", "not run", "not applicable"]


@dataclass(frozen=True, kw_only=True)
class Counterexample:
    """A call that shows what is wrong.

    Attributes:
      stage: where it was seen.
      target: the backend, such as ``"tpu-sim:v6e"``.
      name: what is wrong, in a word or two: ``"wrong answer"``, ``"race"``.
      sentence: for a reader.
      details: more lines of it, such as the rest of a compiler's message.
      shapes: of the arguments.
      dtypes: of the arguments.
      options: keyword arguments.
      seed: of the draws.
      example: the drawn choices, as text: the same seed draws it again.
      output: which output.
      index: the worst element; () if no element was looked at.
      kernel: its value.
      expected: its value in the reference in float64.
      error: in ulps of the output's scale; infinite for what is never within a tolerance.
      allowed: the largest error that would pass.
      wrong: how many elements are wrong.
      block: the program and block that wrote the worst element, or why none did.
      line: ``file:line`` of the kernel, or "".
      cause: the likely cause, or "".
      patterns: what the wrong elements have in common.
    """

    stage: str
    target: str
    name: str
    sentence: str
    details: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seed: int = 0
    example: str = ""
    output: str = ""
    index: tuple[int, ...] = ()
    kernel: Any = None
    expected: Any = None
    error: float = 0.0
    allowed: float = 0.0
    wrong: int = 0
    block: str = ""
    line: str = ""
    cause: str = ""
    patterns: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The verdict of a stage.

    Attributes:
      name: of the stage; ``QUESTIONS`` has what it asks.
      verdict: the verdict.
      reason: why it failed or did not run, in a word or two; "" if it passed.
      sentence: the same for a reader.
      share: which share of its calls was right, from 0 to 1.
      calls: how many calls were judged.
      seconds: how long it took.
    """

    name: str
    verdict: Verdict
    reason: str = ""
    sentence: str = ""
    share: float = 0.0
    calls: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Work:
    """Where a program's work is done, counted while it runs.

    Attributes:
      inside: floating-point operations inside of Pallas kernels.
      outside: those outside of them.
      inside_bytes: bytes that kernels read and write.
      outside_bytes: bytes that operations outside of them write.
      kernels: how many kernels ran.
      constants: bytes of constants.
      copies: whether all that they gave had been given to them.
    """

    inside: int = 0
    outside: int = 0
    inside_bytes: int = 0
    outside_bytes: int = 0
    kernels: int = 0
    constants: int = 0
    copies: bool = False

    @property
    def share(self) -> float:
        """The share of the operations that kernels do; 1 if there are none."""
        total = self.inside + self.outside
        return self.inside / total if total else 1.0


@dataclass(frozen=True, kw_only=True)
class Report:
    """What ``verify`` says of a candidate.

    Attributes:
      name: of the candidate.
      passed: whether every stage that applies passed.
      score: from 0 to 1: the weights of the stages that passed, of those that apply. A stage with
        several calls counts by the share that was right.
      stages: the verdicts, in order.
      counterexamples: the calls that show what is wrong, the first of each kind.
      digest: a name of the programs that were judged; "" if there are none. Programs of the same
        digest compute the same.
      files: SHA-256 of each file that the candidate was made of.
      programs: the digest of each program, by shapes.
      functions: these programs as functions of arrays, by shapes: what to time, and to run.
      work: of the first call.
      task: what is doubtful about the task itself.
      unusual: how answers differ from the reference's in what is finite, for one element of NaN,
        infinity or a huge number; no reason to refuse it.
      unserved: hidden dtypes and options that the candidate does not serve, and why.
      in_force: what the sandbox took away from the candidate.
      targets: the backends.
      seed: of the draws; with it, the same calls are drawn again.
      undecided: why the judge could not decide; "" if it could.
      printed: the end of what the candidate printed.
      seconds: how long it took.
    """

    name: str
    passed: bool
    score: float
    stages: tuple[Stage, ...]
    counterexamples: tuple[Counterexample, ...] = ()
    digest: str = ""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    programs: Mapping[str, str] = field(default_factory=dict[str, str])
    functions: Mapping[str, Callable[..., Any]] = field(
        default_factory=dict[str, Any], repr=False, compare=False
    )
    work: Work = field(default_factory=Work)
    task: tuple[str, ...] = ()
    unusual: tuple[str, ...] = ()
    unserved: tuple[str, ...] = ()
    in_force: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    seed: int = 0
    undecided: str = ""
    printed: str = ""
    seconds: float = 0.0

    @property
    def failed(self) -> Stage | None:
        """The first stage that failed."""
        return next((stage for stage in self.stages if stage.verdict == "failed"), None)

    @property
    def reason(self) -> str:
        """Why it failed, in a word or two; "" if it passed."""
        return "" if self.failed is None else self.failed.reason

    @property
    def status(self) -> int:
        """The exit status: 0 passed, 1 failed, 3 the judge could not decide."""
        return 3 if self.undecided else 0 if self.passed else 1

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def score_of(stages: tuple[Stage, ...]) -> float:
    """Return the score of these stages."""
    counted = [stage for stage in stages if stage.verdict != "not applicable"]
    total = sum(WEIGHTS[stage.name] for stage in counted)
    reached = sum(
        WEIGHTS[stage.name] * (1.0 if stage.verdict == "passed" else stage.share)
        for stage in counted
        if stage.verdict in ("passed", "failed")
    )
    return round(reached / total, 4) if total else 0.0


def to_json(report: Report) -> dict[str, Any]:
    """Return a report as plain JSON values; infinite numbers and NaN become texts."""
    facts: dict[str, Any] = {
        "format": 1,
        **dataclasses.asdict(dataclasses.replace(report, functions={})),
        "reason": report.reason,
        "status": report.status,
        "weights": dict(WEIGHTS),
    }
    del facts["functions"]
    facts["work"]["share"] = report.work.share
    return plain(facts)


def plain(value: Any) -> Any:
    """Return a value as JSON has it; infinite numbers, NaN and complex ones become texts."""
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, complex):
        return str(value)
    return value


def _lines(report: Report) -> list[str]:
    verdict = "undecided" if report.undecided else "passed" if report.passed else "failed"
    lines = [f"{report.name}: {verdict}, score {report.score:.2f}, seed {report.seed}"]
    if report.undecided:
        lines.append(f"  undecided: {report.undecided}")
    for stage in report.stages:
        text = f"  {stage.name:<14}{stage.verdict}"
        if stage.calls:
            text += f" ({stage.calls} calls)"
        lines.append(text + (f": {stage.sentence}" if stage.sentence else ""))
    lines += [f"  task: {sentence}" for sentence in report.task]
    lines += [f"  not served: {sentence}" for sentence in report.unserved]
    lines += [f"  unusual: {sentence}" for sentence in report.unusual]
    for example in report.counterexamples:
        shapes = ", ".join(
            f"{dtype}{list(shape)}"
            for shape, dtype in zip(example.shapes, example.dtypes, strict=True)
        )
        lines.append(f"  {example.name} on {example.target} of {shapes}")
        lines += [f"    {detail}" for detail in example.details[:_MOST_DETAILS]]
        for name, text in (
            ("example", example.example),
            ("line", example.line),
            ("block", example.block),
            ("cause", example.cause),
        ):
            if text:
                lines.append(f"    {name:<9}{text}")
    if report.digest:
        lines.append(f"  program {report.digest}")
    if report.in_force:
        lines.append(f"  sandbox: {', '.join(report.in_force)}")
    return lines
