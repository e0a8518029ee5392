"""``verify --suite=jaxbench FOLDER``: judge the candidates of a folder of JAXBench.

JAXBench (github.com/AI-Hypercomputer/accelerator-agents) has a folder for each task. Its
``baseline.py`` has ``CONFIG``, ``create_inputs()`` and ``workload(*inputs)``; a candidate is a file
beside it, or anywhere else, with a ``workload`` of its own. The folder is only read, and nothing of
it is imported here.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pallas_sim import simulate
from pallas_sim.errors import OptionError, PallasError, first_line
from pytest_pallas.backends.ending import ending
from pytest_pallas.candidates.codec import ProgramData
from pytest_pallas.candidates.judge import verify
from pytest_pallas.candidates.sandbox import Failed, warm_sandbox
from pytest_pallas.candidates.shrinking import Shrinking, ShrunkTask
from pytest_pallas.candidates.source import CandidateSource
from pytest_pallas.candidates.suite_modules import (
    Shaped,
    SuiteCall,
    Workload,
    config_of,
    driven,
    inputs_of,
    of_driver,
    shaped,
    trace,
    unusable,
    varied,
)
from pytest_pallas.candidates.verdicts import Report, plain, to_json
from pytest_pallas.candidates.work import static_problem
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.errors import BackendUnavailableError, CompileError, CompilerFailedError
from pytest_pallas.grid.analysis import analyze_jaxpr
from pytest_pallas.run.standalone import check

#: The file of a task that is its reference, and names of files that are no candidates.
BASELINE = "baseline.py"
_NO_CANDIDATES = frozenset({BASELINE, "__init__.py"})

#: The rule of JAXBench: ``numpy.allclose`` of float32 with these.
ATOL = RTOL = 1e-2

#: Seconds for the runs of a candidate, each of which may take seconds.
BUDGET = 300.0

#: Most other inputs that a candidate is judged on, beside those of the suite: of other seeds, and
#: the last with other numbers in place of constants.
MOST_HIDDEN = 2

#: Findings of the analysis of a grid for which a compiler refuses a kernel.
_REFUSED = ("tile", "vmem", "smem")


@dataclass(frozen=True, kw_only=True)
class SuiteTask:
    """A task of a suite, and the files of its candidates.

    Attributes:
      name: of its folder.
      baseline: the file of its reference.
      candidates: files with a ``workload`` of the same inputs.
    """

    name: str
    baseline: Path
    candidates: tuple[Path, ...]


@dataclass(frozen=True, kw_only=True)
class OwnVerdict:
    """What the rule of JAXBench says of a candidate, run on a simulated chip.

    Attributes:
      status: as in its JSON: ``"correct"``, ``"incorrect"``, ``"compile_error"``,
        ``"runtime_error"``, or ``"error"``; "" if it could not be applied.
      correctness: as in its JSON, where there are outputs.
      error: what was raised.
    """

    status: str
    correctness: Mapping[str, Any] = field(default_factory=dict[str, Any])
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class SuiteVerdict:
    """What is said of one candidate of a task.

    Attributes:
      task: name of the task.
      candidate: the file, or None of a task without one.
      own: by the rule of JAXBench.
      verdict: by ours: ``"passed"``, ``"failed"`` or ``"undecided"``; ``"not run"`` without a
        candidate.
      why: why it did not pass, in a sentence; "" if it did.
      given: shapes and dtypes of the suite's inputs.
      judged: those at which numbers were compared; () if none were.
      part: whether these are a part of the answer at the suite's sizes; see ``shrinking``.
      config: the entries of ``CONFIG``.
      report: of ``verify``, at the sizes of ``judged``; None if it was not reached.
      seconds: how long it took.
    """

    task: str
    candidate: Path | None
    own: OwnVerdict
    verdict: str
    why: str
    given: tuple[Shaped, ...] = ()
    judged: tuple[Shaped, ...] = ()
    part: bool = True
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    report: Report | None = None
    seconds: float = 0.0

    @property
    def status(self) -> int:
        """The exit status: 0 passed, or nothing to judge; 1 failed; 3 undecided."""
        return {"passed": 0, "not run": 0, "failed": 1}.get(self.verdict, 3)


def find_tasks(folder: Path, workload: str = "", kernel: Path | None = None) -> list[SuiteTask]:
    """Return the tasks of a folder of JAXBench, in the suite's order.

    Args:
      folder: the suite, its folder ``benchmark``, or the folder of one task.
      workload: the name of the only task that is meant; all by default.
      kernel: the only candidate; by default those beside ``baseline.py``.

    Raises:
      OptionError: it is no such folder, it has no such task, or there is no candidate.
    """
    if not folder.is_dir():
        raise OptionError(f"{folder}: there is no such folder")
    if (folder / BASELINE).is_file():
        folders = [folder]
    else:
        root = folder / "benchmark" if (folder / "benchmark").is_dir() else folder
        folders = [one for one in root.iterdir() if (one / BASELINE).is_file()]
        folders = [one for one in folders if not one.name.startswith(("_", "."))]
    if not folders:
        raise OptionError(
            f"{folder} is no folder of JAXBench: it has no folder with {BASELINE}, nor has its "
            "folder benchmark"
        )
    chosen = sorted(folders, key=lambda one: _order(one.resolve().name))
    if workload:
        chosen = [one for one in chosen if one.resolve().name == workload]
        if not chosen:
            names = ", ".join(sorted(one.resolve().name for one in folders))
            raise OptionError(f"--workload={workload}: there is no such task; there are {names}")
    if kernel is not None:
        if len(chosen) != 1:
            raise OptionError("--kernel is a candidate of one task: name it with --workload")
        if not kernel.is_file():
            raise OptionError(f"--kernel={kernel}: there is no such file")
    tasks = [
        SuiteTask(
            name=one.resolve().name,
            baseline=one / BASELINE,
            candidates=(kernel,) if kernel is not None else tuple(_beside(one)),
        )
        for one in chosen
    ]
    if not any(task.candidates for task in tasks):
        raise OptionError(
            f"{folder} has no candidate: put files with a function workload beside {BASELINE}, or "
            "name one with --workload and --kernel"
        )
    return tasks


def _beside(folder: Path) -> Iterator[Path]:
    """Yield the candidates beside the baseline of a task."""
    for path in sorted(folder.glob("*.py")):
        if path.name not in _NO_CANDIDATES and path.is_file():
            yield path


def _order(name: str) -> tuple[int, str]:
    """The suite's order: by the number that a name begins with."""
    digits = name[: len(name) - len(name.lstrip("0123456789"))]
    return (int(digits) if digits else 999, name)


def verify_suite(
    tasks: Sequence[SuiteTask],
    *,
    tpu: str = "v6e",
    budget: float = BUDGET,
    seed: int | None = None,
    hidden: int = MOST_HIDDEN,
    stop: bool = True,
    compiles: bool = True,
) -> Iterator[SuiteVerdict]:
    """Judge the candidates of tasks; yield a verdict for each, and one for a task without any.

    Args:
      tasks: of ``find_tasks``.
      tpu: the chip.
      budget: seconds for the runs of a candidate.
      seed: of other inputs and of runs; by default a new one for each candidate.
      hidden: how many other inputs are drawn, at most ``MOST_HIDDEN``.
      stop: False to run later stages after a failure, too.
      compiles: whether the chip's compiler is asked, where it is installed.
    """
    settings = _Settings(
        tpu=tpu,
        budget=budget,
        seed=seed,
        hidden=min(hidden, MOST_HIDDEN),
        stop=stop,
        compiles=compiles,
    )
    for task in tasks:
        if not task.candidates:
            sentence = f"no candidate: {BASELINE} is alone"
            yield SuiteVerdict(
                task=task.name,
                candidate=None,
                own=OwnVerdict(status=""),
                verdict="not run",
                why=sentence,
            )
        judge: _TaskJudge | None = None
        for path in task.candidates:
            judge = judge or _TaskJudge(task, settings)
            begun = time.monotonic()
            verdict = judge.judged(path)
            yield dataclasses.replace(verdict, seconds=round(time.monotonic() - begun, 2))


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """The arguments of ``verify_suite``."""

    tpu: str
    budget: float
    seed: int | None
    hidden: int
    stop: bool
    compiles: bool


class _TaskJudge:
    """The judge of the candidates of a task.

    Attributes:
      workload: the task.
      full: its call at the suite's sizes, or why there is none.
      reference: what it computes in it, or why it has no program.
    """

    def __init__(self, task: SuiteTask, settings: _Settings) -> None:
        self.task, self.settings, self.tpu = task, settings, settings.tpu
        source = driven(task.baseline)
        text = next((text for name, text in source.files.items() if name == BASELINE), "")
        self.workload = Workload(source, config_of(text), warm_sandbox(), self.tpu)
        self.full = self.workload.full
        self.reference: ProgramData | Failed | None = None
        if isinstance(self.full, SuiteCall) and not unusable(self.full):
            (self.reference,) = self.workload.programs([self.full])

    def judged(self, path: Path) -> SuiteVerdict:
        """Judge a candidate."""
        full, reference = self.full, self.reference
        if isinstance(full, Failed):
            return self._undecided(path, f"{BASELINE}: {full.sentence}", "error")
        problem = unusable(full)
        if problem:
            return self._undecided(path, f"{BASELINE}: {problem}", "")
        if not isinstance(reference, ProgramData):
            assert reference is not None
            return self._undecided(path, f"{BASELINE}: {reference.sentence}", "error")
        source = driven(path)
        (program,) = trace(source, "workload", [full.case], self.workload.sandbox, self.tpu)
        if isinstance(program, Failed):
            return self._without_program(path, program)
        problem, own = self._at_full_size(full, program, reference)
        shrinking = Shrinking(self.workload, source, full, reference, program)
        if not problem:
            return self._compared(path, source, shrinking.shrunk())
        facts: dict[str, Any] = {}
        if own is None:  # which may find it right all the same
            task = shrinking.shrunk()
            own = self._by_own_rule(source, task)
            facts = {"judged": () if task.sentence else task.call.args, "part": task.part}
        return self._verdict(path, own, "failed", problem, **facts)

    def _verdict(
        self, path: Path, own: OwnVerdict, verdict: str, why: str, **facts: Any
    ) -> SuiteVerdict:
        given = self.full.args if isinstance(self.full, SuiteCall) else ()
        return SuiteVerdict(
            task=self.task.name,
            candidate=path,
            own=own,
            verdict=verdict,
            why=why,
            given=given,
            config=self.workload.config,
            **facts,
        )

    def _undecided(self, path: Path, why: str, status: str) -> SuiteVerdict:
        return self._verdict(
            path, OwnVerdict(status=status, error=why if status else ""), "undecided", why
        )

    def _without_program(self, path: Path, problem: Failed) -> SuiteVerdict:
        """The verdict of a candidate that is not imported, or not traced."""
        missing = problem.type == "AttributeError" and "workload" in problem.sentence
        status = "runtime_error"
        if problem.stage == "imports":
            status = "compile_error" if missing else "error"
        own = OwnVerdict(status=status, error=problem.sentence)
        if problem.type == "ProgramError" or not problem.type:
            own = OwnVerdict(status="")  # it is the sandbox that refuses it
        line = f" ({problem.line})" if problem.line and not of_driver(problem.line) else ""
        return self._verdict(path, own, "failed", f"{problem.stage}: {problem.sentence}{line}")

    def _at_full_size(
        self, full: SuiteCall, program: ProgramData, reference: ProgramData
    ) -> tuple[str, OwnVerdict | None]:
        """Return what is wrong at the suite's sizes, which needs no run, and its own verdict."""
        import jax

        expected, actual = shaped(reference), shaped(program)
        if len(expected) != len(actual):
            reason = f"output count mismatch: {len(expected)} vs {len(actual)}"
            return f"given: {reason}", _incorrect(reason)
        for (shape, _), (other, _) in zip(expected, actual, strict=True):
            if shape != other:
                reason = f"shape mismatch: {shape} vs {other}"
                return f"given: {reason}", _incorrect(reason)
        for (_, dtype), (_, other) in zip(expected, actual, strict=True):
            if dtype != other:
                return f"given: wrong dtype: {other} in place of {dtype}", None
        problem = static_problem(program.jaxpr)
        if problem is not None:
            return f"kernel: {problem[1]}", None
        arrays = [jax.ShapeDtypeStruct(shape, np.dtype(dtype)) for shape, dtype in full.args]
        analysis = analyze_jaxpr(program.jaxpr, arrays, chip=self.tpu)
        for finding in analysis.errors:
            return f"given: {finding.kernel}: {finding.operand}: {finding.message}", None
        refusal = next((f for f in analysis.findings if f.kind in _REFUSED), None)
        sentence = f"{refusal.kernel}: {refusal.operand}: {refusal.message}" if refusal else ""
        if self.settings.compiles:  # what the compiler says is more exact than the analysis
            try:
                check(program, *arrays, backend=f"tpu-compile:{self.tpu}", timeout=300)
                sentence = ""
            except (BackendUnavailableError, CompilerFailedError):
                pass
            except CompileError as error:
                sentence = first_line(error)
        if sentence:
            return f"compiles: {sentence}", OwnVerdict(status="runtime_error", error=sentence)
        return "", None

    def _compared(self, path: Path, source: CandidateSource, task: ShrunkTask) -> SuiteVerdict:
        """Compare numbers, at sizes that can be simulated."""
        facts = {"judged": task.call.args, "part": task.part}
        if task.sentence:
            return self._verdict(path, OwnVerdict(status=""), "undecided", task.sentence)
        own = self._by_own_rule(source, task)
        settings = self.settings
        seed = secrets.randbits(32) if settings.seed is None else settings.seed
        rng = np.random.default_rng(seed)
        seeds = rng.integers(1, 1 << 29, settings.hidden).tolist()
        others = [inputs_of(task.call, number) for number in seeds]
        if others:
            others[-1] = varied(rng, others[-1])
        calls = [Arguments(args=args) for args in (inputs_of(task.call), *others)]
        exact = self.workload.in_float64(task.call) or task.reference

        def workload(*args: Any, **_: Any) -> Any:
            wide = any(arg.dtype == np.float64 for arg in args)
            return (exact if wide else task.reference)(*args)

        try:
            report = verify(
                source,
                workload,
                calls,
                targets=(f"tpu-sim:{self.tpu}",),
                options=task.call.config,
                budget=settings.budget,
                seed=seed,
                stop=settings.stop,
            )
        except PallasError as error:
            return self._verdict(path, own, "undecided", first_line(error), **facts)
        failed = report.failed
        if report.undecided:
            return self._verdict(path, own, "undecided", report.undecided, report=report, **facts)
        why = "" if failed is None else f"{failed.name}: {failed.reason}: {failed.sentence}"
        verdict = "passed" if report.passed else "failed"
        if report.reason == "work outside" and not task.part:
            verdict = "undecided"  # at the suite's sizes the shares are others
        return self._verdict(path, own, verdict, why, report=report, **facts)

    def _by_own_rule(self, source: CandidateSource, task: ShrunkTask) -> OwnVerdict:
        """Apply the rule of the suite to the outputs of the simulated chip."""
        import jax

        if task.sentence:
            return OwnVerdict(status="")

        (program,) = trace(source, "workload", [task.call.case], self.workload.sandbox, self.tpu)
        if isinstance(program, Failed):
            return OwnVerdict(status="runtime_error", error=program.sentence)
        inputs = inputs_of(task.call)
        expected = jax.tree.leaves(jax.jit(task.reference)(*inputs))
        try:
            with ending(self.settings.budget):
                actual = jax.tree.leaves(simulate(program, *inputs, target=self.tpu).values)
        except PallasError as error:
            return OwnVerdict(status="runtime_error", error=first_line(error))
        correctness = own_rule(expected, actual)
        status = "correct" if correctness["correct"] else "incorrect"
        return OwnVerdict(status=status, correctness=correctness)


def _incorrect(reason: str) -> OwnVerdict:
    correctness = {"correct": False, "max_diff": float("inf"), "reason": reason}
    return OwnVerdict(status="incorrect", correctness=correctness)


def own_rule(expected: Sequence[Any], actual: Sequence[Any]) -> dict[str, Any]:
    """Compare outputs as JAXBench does.

    Returns:
      ``correct``, ``max_diff`` and ``reason``, as in its JSON.
    """
    largest = 0.0
    for one, other in zip(expected, actual, strict=True):
        right, candidate = (np.asarray(value).astype(np.float32) for value in (one, other))
        with np.errstate(all="ignore"):
            difference = float(np.abs(right - candidate).max(initial=0.0))
        largest = max(largest, difference) if difference == difference else difference
        if not np.allclose(right, candidate, atol=ATOL, rtol=RTOL):
            return {"correct": False, "max_diff": largest, "reason": "values differ"}
    return {"correct": True, "max_diff": largest, "reason": "ok"}


def suite_json(
    verdicts: Sequence[SuiteVerdict], tpu: str, *, single: bool = False
) -> dict[str, Any]:
    """Return verdicts as JAXBench writes its own, with ours, and without times.

    Args:
      verdicts: of candidates.
      tpu: the chip.
      single: whether it is one, as of ``evaluate``; else there are ``metadata`` and ``results``.
    """
    results = [_result(verdict, tpu) for verdict in verdicts]
    if single and len(results) == 1:
        return results[0]
    import jax

    judged = [verdict for verdict in verdicts if verdict.candidate is not None]
    count = Counter(verdict.verdict for verdict in judged)
    metadata = {
        "jax_version": jax.__version__,
        "devices": f"simulated {tpu}",
        "tpu": tpu,
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "num_workloads": len({verdict.task for verdict in verdicts}),
        "num_candidates": len(judged),
        "num_correct": sum(verdict.own.status == "correct" for verdict in judged),
        "num_passed": count["passed"],
        "num_failed": count["failed"],
        "num_undecided": count["undecided"],
    }
    return {"metadata": metadata, "results": results}


def _result(verdict: SuiteVerdict, tpu: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "workload": verdict.task,
        "status": verdict.own.status or "not evaluated",
        "tpu": tpu,
        "config": dict(verdict.config),
    }
    if verdict.own.correctness:
        facts["correctness"] = plain(verdict.own.correctness)
    if verdict.own.error:
        facts["error"] = verdict.own.error
    facts["verify"] = {
        "candidate": None if verdict.candidate is None else str(verdict.candidate),
        "verdict": verdict.verdict,
        "why": verdict.why,
        "input_shapes": [list(shape) for shape, _ in verdict.given],
        "input_dtypes": [dtype for _, dtype in verdict.given],
        "judged_shapes": [list(shape) for shape, _ in verdict.judged],
        "part_of_the_answer": verdict.part,
        "seconds": verdict.seconds,
        "report": None if verdict.report is None else to_json(verdict.report),
    }
    return facts


#: Widths of the columns of the table: task, candidate, by its own rule, by ours.
_WIDTHS = (34, 20, 15, 11)


def table_head() -> str:
    """Return the first line of the table."""
    return _row("task", "candidate", "its own rule", "ours", "why not")


def table_row(verdict: SuiteVerdict) -> str:
    """Return the line of a verdict in the table."""
    name = "" if verdict.candidate is None else verdict.candidate.name
    own = verdict.own.status or "-"
    ours = "-" if verdict.verdict == "not run" else verdict.verdict
    return _row(verdict.task, name, own, ours, verdict.why)


def _row(*cells: str) -> str:
    widths = (*_WIDTHS, 0)
    return " ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()
