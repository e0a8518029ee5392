"""``verify``: judge kernels that a model, a search or a stranger wrote."""

from __future__ import annotations

import hashlib
import inspect
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pallas_sim import set_platforms
from pallas_sim.chips import DEFAULT_TARGETS, Label
from pallas_sim.errors import (
    BoundsError,
    DeadlockError,
    KernelError,
    MissingRuleError,
    OptionError,
    PallasError,
    SimulationLimitError,
    first_line,
)
from pytest_pallas.candidates.codec import ProgramData
from pytest_pallas.candidates.jail import SandboxLimits
from pytest_pallas.candidates.sandbox import (
    MOST_SOURCE,
    Case,
    Failed,
    Sandbox,
    Traced,
    warm_sandbox,
)
from pytest_pallas.candidates.task import DrawnCall, KernelTask, TaskInputs, task_of
from pytest_pallas.candidates.verdicts import (
    Counterexample,
    Report,
    Stage,
    Verdict,
    Work,
    score_of,
)
from pytest_pallas.candidates.work import problem_with, work_of
from pytest_pallas.errors import (
    BackendUnavailableError,
    CapacityError,
    CompileError,
    DmaError,
    GridError,
    HangError,
    KernelReferenceError,
    MismatchError,
    NotApplicableError,
    RaceError,
    facts_of,
)
from pytest_pallas.run.standalone import check
from pytest_pallas.spec import KernelSpec

#: Where candidates are judged unless the caller says otherwise.
TARGETS = ("tpu-sim:v6e", "tpu-compile:v6e")

#: Seconds for a candidate, with its traces and its runs.
BUDGET = 60.0

#: Counterexamples that a stage reports.
_MOST_EXAMPLES = 3

#: What errors are called, the most specific first.
_NAMES: tuple[tuple[type[PallasError], str], ...] = (
    (RaceError, "race"),
    (DmaError, "copy"),
    (DeadlockError, "deadlock"),
    (BoundsError, "out of bounds"),
    (GridError, "grid"),
    (CapacityError, "too much memory"),
    (CompileError, "does not compile"),
    (HangError, "hangs"),
    (SimulationLimitError, "too many steps"),
    (MismatchError, "wrong answer"),
    (KernelError, "raises"),
)

#: Kinds of comparisons that are no wrong numbers.
_KINDS = {"dtype": "wrong dtype", "shape": "wrong shape", "tree": "wrong structure"}


@dataclass(frozen=True, kw_only=True)
class CandidateSource:
    """The source of a kernel.

    Attributes:
      name: for reports.
      files: text of each file, by its name.
      module: the file that is imported.
      function: the name of the kernel in it.
      folder: where the files are, for lines in reports.
      problem: why it cannot be judged at all, or None.
    """

    name: str
    files: Mapping[str, str]
    module: str
    function: str
    folder: str = ""
    problem: Failed | None = None


def divided(text: str) -> tuple[Path, str]:
    """Return the file and the function that ``FILE.py:FUNCTION`` names.

    Raises:
      OptionError: it names none.
    """
    file, colon, function = text.rpartition(":")
    if not colon or not function.isidentifier():
        raise OptionError(f"{text!r}: give the file and the function as FILE.py:FUNCTION")
    return Path(file), function


def candidate_of(kernel: Any) -> CandidateSource:
    """Return the candidate that a caller means.

    Args:
      kernel: ``"FILE.py:FUNCTION"``, a function of a module, or a candidate.

    Raises:
      OptionError: it is none of these, or there is no such file.
    """
    if isinstance(kernel, CandidateSource):
        return kernel
    if isinstance(kernel, str):
        path, function = divided(kernel)
    else:
        try:
            path, function = Path(inspect.getsourcefile(kernel) or ""), str(kernel.__qualname__)
        except (TypeError, AttributeError):
            raise OptionError(
                f"{kernel!r} has no source file: give a function of a module, or FILE.py:FUNCTION"
            ) from None
        if "<" in function:
            raise OptionError(
                f"{function} is defined inside of a function: move it to its module, so that it "
                "can be imported in another process"
            )
    if not path.is_file():
        raise OptionError(f"there is no file {path}")
    name, problem, text = f"{path.name}:{function}", None, ""
    if path.stat().st_size > MOST_SOURCE:
        sentence = f"{path.name} has {path.stat().st_size >> 20} MiB; the limit is 1 MiB"
        problem = Failed(stage="imports", name="too large", sentence=sentence)
    else:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    module = path.name if path.suffix == ".py" else f"{path.name}.py"
    module = module if module.removesuffix(".py").isidentifier() else "candidate.py"
    return CandidateSource(
        name=name,
        files={module: text},
        module=module,
        function=function,
        folder=str(path.parent.resolve()) if module == path.name else "",
        problem=problem,
    )


def verify(
    kernel: Any,
    reference: Callable[..., Any] | None = None,
    inputs: Any = None,
    *,
    targets: Sequence[str] = TARGETS,
    budget: float = BUDGET,
    seed: int | None = None,
    spec: KernelSpec | None = None,
    dtypes: Sequence[str] = ("float32",),
    sizes: Mapping[str, int] | None = None,
    options: Mapping[str, Any] | None = None,
    differentiable: Sequence[int] = (),
    hidden: int = 20,
    stop: bool = True,
) -> Report:
    """Judge a kernel that somebody else wrote, whose code never runs in this process.

    A sandboxed process imports and traces it. What is judged is the traced program, which is handed
    over as data; docs/judge.md says what the sandbox promises.

    Args:
      kernel: ``"FILE.py:FUNCTION"``, or a function of a module.
      reference: the same function in jnp. It is trusted, and runs here.
      inputs: shapes such as ``"m k, k n"`` (docs/strategies.md), a hypothesis strategy of calls, a
        sequence of arrays and ``jax.ShapeDtypeStruct``, of whose shapes other values are drawn, or
        a sequence of ``Arguments``: the given call, and the hidden ones.
      targets: simulated chips (``"tpu-sim:v6e"``, ``"gpu-sim:h100"``), and compilers
        (``"tpu-compile:v6e"``), which are used where they are installed.
      budget: seconds for all of it.
      seed: of the draws; by default one that nobody can know before. The report has it.
      spec: a ``KernelSpec`` in place of reference and inputs; its kernel is not run.
      dtypes: of the arrays of shapes: one for all, or one for each.
      sizes: sizes of the first call, by name, such as ``{"m": 256}``.
      options: keyword arguments of kernel and reference: numbers and texts.
      differentiable: positions of arguments; the gradients by these are judged, too.
      hidden: how many calls are drawn that nobody has seen.
      stop: False to run the later stages after a failure, too.

    Raises:
      OptionError: an argument cannot be used.
      ShapeLanguageError: ``inputs`` cannot be understood.
      KernelReferenceError: the reference raised.
      BackendUnavailableError: a target is not there.
    """
    (report,) = verify_many(
        [kernel],
        reference,
        inputs,
        targets=targets,
        budget=budget,
        seed=seed,
        spec=spec,
        dtypes=dtypes,
        sizes=sizes,
        options=options,
        differentiable=differentiable,
        hidden=hidden,
        stop=stop,
    )
    return report


def verify_many(
    candidates: Sequence[Any],
    reference: Callable[..., Any] | None = None,
    inputs: Any = None,
    *,
    targets: Sequence[str] = TARGETS,
    budget: float = BUDGET,
    seed: int | None = None,
    spec: KernelSpec | None = None,
    dtypes: Sequence[str] = ("float32",),
    sizes: Mapping[str, int] | None = None,
    options: Mapping[str, Any] | None = None,
    differentiable: Sequence[int] = (),
    hidden: int = 20,
    stop: bool = True,
) -> Iterator[Report]:
    """Judge several candidates of one task, as ``verify`` judges one; yield a report for each.

    The task is drawn once, and the process that traces them is kept.

    Args:
      candidates: the kernels; the other arguments are those of ``verify``.

    Raises:
      OptionError: see ``verify``, as for its other errors.
    """
    set_platforms()
    if spec is not None:
        reference, inputs = reference or spec.reference, spec.inputs if inputs is None else inputs
        differentiable = differentiable or tuple(spec.differentiable)
    if reference is None or inputs is None:
        raise OptionError("give a reference and inputs, or a spec that has both")
    labels = tuple(map(_label, targets))
    if not any(label.name.endswith("-sim") for label in labels):
        raise OptionError(
            f"targets: none of {', '.join(targets)} is a simulator, which runs a kernel"
        )
    known = [candidate_of(candidate) for candidate in candidates]
    seed = secrets.randbits(32) if seed is None else seed
    drawn = TaskInputs(
        inputs=inputs,
        dtypes=tuple(dtypes),
        sizes=dict(sizes or {}),
        options=dict(options or {}),
        hidden=hidden,
    )
    task = task_of(reference, drawn, seed=seed, differentiable=differentiable)
    return _judged(known, task, labels, budget, stop)


def _judged(
    candidates: Sequence[CandidateSource],
    task: KernelTask,
    labels: Sequence[Label],
    budget: float,
    stop: bool,
) -> Iterator[Report]:
    for candidate in candidates:
        yield _Judge(candidate, task, labels, warm_sandbox(), budget, stop).report()


def _label(target: str) -> Label:
    """Return a target with its chip.

    Raises:
      OptionError: it is no simulator and no compiler.
    """
    label = Label.of(target)
    if not label.name.endswith(("-sim", "-compile")):
        raise OptionError(
            f"targets: {target!r} is neither a simulator (tpu-sim, gpu-sim) nor a compiler "
            "(tpu-compile, gpu-compile)"
        )
    platform = label.name.partition("-")[0]
    return label if label.target else Label(label.name, DEFAULT_TARGETS[platform])


def _text(label: Label) -> str:
    return f"{label.name}:{label.target}"


@dataclass
class _Judge:
    """The judgement of one candidate.

    Attributes:
      traced: what the sandbox gave, by chip.
      stages: the verdicts so far.
      examples: the counterexamples so far.
      works: whether the program of a call has a kernel.
    """

    candidate: CandidateSource
    task: KernelTask
    labels: Sequence[Label]
    sandbox: Sandbox
    budget: float
    stop: bool
    traced: dict[str, Traced] = field(default_factory=dict[str, Traced])
    stages: list[Stage] = field(default_factory=list[Stage])
    examples: list[Counterexample] = field(default_factory=list[Counterexample])
    work: Work = field(default_factory=Work)
    works: dict[tuple[str, int], bool] = field(default_factory=dict[tuple[str, int], bool])
    undecided: str = ""
    begun: float = field(default_factory=time.monotonic)

    def report(self) -> Report:
        """Run the stages, and return what they say."""
        task = self.task
        stages = {
            "imports": self.imports,
            "traces": self.traces,
            "kernel": self.kernel,
            "compiles": self.compiles,
            "given": lambda: self.calls("given", self.first, ("forward", "grid", "immutability")),
            "hidden": lambda: self.calls("hidden", self.hidden, ("forward",)),
            "ordered": lambda: self.calls(
                "ordered", self.first, ("races", "dma", "deadlock", "schedule")
            ),
            "deterministic": lambda: self.calls("deterministic", self.first, ("determinism",)),
            "gradients": self.gradients,
            "cost": self.cost,
        }
        if task.fault:
            self.undecided = task.fault
        for name, run in stages.items():
            before = time.monotonic()
            failed = any(stage.verdict == "failed" for stage in self.stages)
            fatal = any(
                stage.verdict == "failed" and stage.name in ("imports", "traces")
                for stage in self.stages
            )
            if self.undecided or fatal or (failed and self.stop):
                stage = Stage(name=name, verdict="not run")
            else:
                stage = run()
            self.stages.append(replace(stage, seconds=round(time.monotonic() - before, 4)))
        listed = tuple(self.stages)
        passed = not self.undecided and all(
            stage.verdict in ("passed", "not applicable") for stage in listed
        )
        digests = {
            f"{label} {_shapes(call.case)}": program.digest
            for label, traced in self.traced.items()
            for number, program in traced.programs.items()
            for call in task.calls[number : number + 1]
        }
        together = hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest()[:32]
        first = next(iter(self.traced.values()), None)
        return Report(
            name=self.candidate.name,
            passed=passed,
            score=0.0 if self.undecided else score_of(listed),
            stages=listed,
            counterexamples=tuple(self.examples),
            digest=together if digests else "",
            programs=digests,
            work=self.work,
            task=task.doubts,
            in_force=() if first is None else first.in_force,
            targets=tuple(map(_text, self.labels)),
            seed=task.seed,
            undecided=self.undecided,
            printed="" if first is None else first.output,
            seconds=round(time.monotonic() - self.begun, 4),
        )

    # The stages.

    @property
    def simulators(self) -> Sequence[Label]:
        """The simulated targets."""
        return [label for label in self.labels if label.name.endswith("-sim")]

    @property
    def first(self) -> list[int]:
        """Numbers of the calls of given shapes."""
        return [n for n, call in enumerate(self.task.calls) if not call.hidden]

    @property
    def hidden(self) -> list[int]:
        """Numbers of the hidden calls."""
        return [n for n, call in enumerate(self.task.calls) if call.hidden]

    def imports(self) -> Stage:
        """Import and trace the candidate in the sandbox."""
        if self.candidate.problem is not None:
            return _failed_stage("imports", self.candidate.problem)
        gradients = [self._gradient_case(n) for n in self.first if self.task.differentiable]
        cases = [*(call.case for call in self.task.calls), *gradients]
        again = [len(self.task.calls) - 1, 0]
        for label in self.simulators:
            self.traced[_text(label)] = self.sandbox.trace(
                self.candidate.files,
                self.candidate.module,
                self.candidate.function,
                cases,
                target=label.target,
                again=again,
                folder=self.candidate.folder,
                limits=SandboxLimits(seconds=min(self.budget, 60.0)),
            )
        for traced in self.traced.values():
            if not traced.imported:
                assert traced.failed is not None
                return _failed_stage("imports", traced.failed)
        return Stage(name="imports", verdict="passed")

    def traces(self) -> Stage:
        """Look at what came of the traces."""
        for label, traced in self.traced.items():
            if traced.failed is not None:
                return _failed_stage("traces", traced.failed)
            for number in self.first:
                if number in traced.refused:
                    problem = traced.refused[number]
                    self._add(self._refusal("traces", label, number, problem))
                    return _failed_stage("traces", problem)
            for number, digest in traced.again.items():
                program, refused = traced.programs.get(number), traced.refused.get(number)
                first = program.digest if program else refused.sentence if refused else ""
                if first != digest:
                    sentence = "a second trace of the same call gives another program"
                    call = self._example("traces", label, number, "state", sentence)
                    self._add(call)
                    return Stage(name="traces", verdict="failed", reason="state", sentence=sentence)
        return Stage(name="traces", verdict="passed")

    def kernel(self) -> Stage:
        """Look at where the programs do their work."""
        hidden: list[tuple[str, int, str, str]] = []
        looked = 0
        for label, traced in self.traced.items():
            for number, program in traced.programs.items():
                if number >= len(self.task.calls):
                    continue
                looked += 1
                work = work_of(program.jaxpr)
                if work.inside + work.outside >= self.work.inside + self.work.outside:
                    self.work = work
                self.works[label, number] = work.kernels > 0
                problem = problem_with(program.jaxpr, work)
                if problem is None:
                    continue
                if number in self.first:
                    self._add(self._example("kernel", label, number, *problem))
                    return _failed_stage(
                        "kernel", Failed(stage="kernel", name=problem[0], sentence=problem[1])
                    )
                hidden.append((label, number, *problem))
        if hidden and 2 * len(hidden) > looked - len(self.first) * len(self.traced):
            label, number, name, sentence = hidden[0]
            sentence = f"for {len(hidden)} hidden calls: {sentence}"
            self._add(self._example("kernel", label, number, name, sentence))
            return _failed_stage("kernel", Failed(stage="kernel", name=name, sentence=sentence))
        return Stage(name="kernel", verdict="passed", calls=looked, share=1.0)

    def compiles(self) -> Stage:
        """Compile the first call where a compiler is installed."""
        compilers = [label for label in self.labels if label.name.endswith("-compile")]
        missing = ""
        compiled = 0
        for label in compilers:
            traced = self._traced_for(label)
            if traced is None or 0 not in traced.programs:
                continue
            problem = self._checked("compiles", _text(label), 0, traced.programs[0], "")
            if isinstance(problem, str):
                missing = problem
                continue
            compiled += 1
            if problem is not None:
                self._add(problem)
                return _of_example("compiles", problem, compiled)
        if not compiled:
            sentence = missing or "no compiler is installed"
            return Stage(name="compiles", verdict="not applicable", sentence=sentence)
        return Stage(name="compiles", verdict="passed", calls=compiled, share=1.0)

    def calls(self, stage: str, numbers: Sequence[int], checks: Sequence[str]) -> Stage:
        """Judge calls by checks, on every simulator."""
        right = judged = 0
        applied = False
        first: Counterexample | None = None
        left = 0
        for label, traced in self.traced.items():
            for number in numbers:
                if self._late() and judged:
                    left += 1
                    continue
                problem = self._call(stage, label, traced, number, checks)
                if self.undecided:
                    return Stage(name=stage, verdict="not run", sentence=self.undecided)
                if problem == "":
                    continue
                applied = True
                judged += 1
                if problem is None:
                    right += 1
                    continue
                assert isinstance(problem, Counterexample)
                first = first or problem
                self._add(problem)
        if not numbers or not applied:
            return Stage(name=stage, verdict="not applicable")
        share = round(right / judged, 4)
        if first is not None:
            return _of_example(stage, first, judged, share)
        sentence = f"the budget ended before {left} more calls" if left else ""
        return Stage(name=stage, verdict="passed", calls=judged, share=share, sentence=sentence)

    def _call(
        self, stage: str, label: str, traced: Traced, number: int, checks: Sequence[str]
    ) -> Counterexample | str | None:
        """Judge one call; "" if none of the checks applies, None if all is right."""
        if number in traced.refused:
            return self._refusal(stage, label, number, traced.refused[number])
        outcome: Counterexample | str | None = ""
        for name in checks:
            problem = self._checked(stage, label, number, traced.programs[number], name)
            if isinstance(problem, Counterexample) or self.undecided:
                return problem
            outcome = None if problem is None else outcome
        return outcome

    def gradients(self) -> Stage:
        """Judge the gradients of the given calls."""
        task = self.task
        if not task.differentiable:
            return Stage(name="gradients", verdict="not applicable")
        judged = 0
        for label, traced in self.traced.items():
            for position, number in enumerate(self.first):
                at = len(task.calls) + position
                if at in traced.refused:
                    problem: Any = self._refusal("gradients", label, number, traced.refused[at])
                else:
                    program = traced.programs[at]
                    problem = self._checked("gradients", label, number, program, "forward", True)
                judged += 1
                if isinstance(problem, Counterexample):
                    self._add(problem)
                    return _of_example("gradients", problem, judged)
        return Stage(name="gradients", verdict="passed", calls=judged, share=1.0)

    def cost(self) -> Stage:
        """Say what the largest call costs."""
        work = self.work
        sentence = (
            f"kernels do {work.inside:,} operations ({100 * work.share:.0f} %) on "
            f"{work.inside_bytes:,} bytes, other operations {work.outside:,}"
        )
        return Stage(name="cost", verdict="passed", sentence=sentence, share=1.0)

    # One call.

    def _late(self) -> bool:
        return time.monotonic() - self.begun > self.budget

    def _traced_for(self, label: Label) -> Traced | None:
        """Return the traces for a compiler's chip, or those for another chip of its platform."""
        platform = label.name.partition("-")[0]
        return next(
            (traced for name, traced in self.traced.items() if name.startswith(platform)), None
        )

    def _gradient_case(self, number: int) -> Case:
        case = self.task.calls[number].case
        return replace(case, gradient=self.task.differentiable)

    def _checked(
        self,
        stage: str,
        label: str,
        number: int,
        program: ProgramData,
        name: str,
        gradient: bool = False,
    ) -> Counterexample | str | None:
        """Run a check of a program on a call; a text says why it does not apply."""
        call = self.task.calls[number]
        args, reference = call.arguments.args, _without_tuning(self.task.reference, call)
        if gradient:
            args, reference = _gradient_call(reference, args, self.task.differentiable)
        keywords: dict[str, Any] = {"checks": name} if name else {}
        without = not self.works.get((label, number), True)
        if gradient:  # which may be left to jnp
            without = not work_of(program.jaxpr).kernels
        try:
            check(
                _through_a_kernel(program) if without else program,
                *args,
                reference=reference,
                backend=label,
                name=self.candidate.function,
                timeout=max(1.0, min(30.0, self.budget)),
                **keywords,
            )
        except (NotApplicableError, BackendUnavailableError) as error:
            return first_line(error)
        except OptionError:
            raise
        except (KernelReferenceError, MissingRuleError) as error:
            self.undecided = first_line(error)
            return None
        except PallasError as error:
            return self._of_error(stage, label, number, error, name)
        except Exception as error:  # a program that JAX cannot trace again
            sentence = f"{type(error).__name__}: {first_line(error)}"
            return self._example(stage, label, number, "no program", sentence)
        return None

    def _of_error(
        self, stage: str, label: str, number: int, error: PallasError, check_name: str
    ) -> Counterexample:
        """Return what an error says, as data."""
        name = next((name for kind, name in _NAMES if isinstance(error, kind)), "raises")
        failure = facts_of(error).failure
        failed = None if failure is None or failure.result is None else failure.result.failed
        findings = getattr(error, "findings", ())
        line = next((finding.line for finding in findings if finding.line), "")
        example = self._example(stage, label, number, name, _sentence(error), line=line)
        example = replace(example, block=_fact(error, "block"), cause=_fact(error, "cause"))
        if check_name == "immutability":
            example = replace(example, name="changes its inputs")
        if failed is None:
            return example
        kind = _KINDS.get(failed.kind, name)
        return replace(
            example,
            name=kind if name == "wrong answer" else name,
            sentence=failed.explanation.summary if failed.explanation else example.sentence,
            output=failed.where,
            index=failed.worst_index or (),
            kernel=failed.actual_value,
            expected=failed.expected_value,
            error=failed.error,
            allowed=failed.allowed,
            wrong=failed.wrong,
            patterns=failed.patterns,
            line=line or self._line(label, number),
        )

    def _line(self, label: str, number: int) -> str:
        """Return the line of the kernel's call."""
        from pytest_pallas.grid.kernel_calls import kernel_calls

        program = self.traced[label].programs.get(number) if label in self.traced else None
        calls = [] if program is None else kernel_calls(program.jaxpr)
        return next((call.source for call in calls if call.source), "")

    def _refusal(self, stage: str, label: str, number: int, problem: Failed) -> Counterexample:
        line = problem.line
        if line and self.candidate.folder:
            line = f"{self.candidate.folder}/{line}"
        return self._example(stage, label, number, problem.name, problem.sentence, line=line)

    def _example(
        self, stage: str, label: str, number: int, name: str, sentence: str, *, line: str = ""
    ) -> Counterexample:
        call = self.task.calls[number]
        return Counterexample(
            stage=stage,
            target=label,
            name=name,
            sentence=sentence,
            shapes=tuple(shape for shape, _ in call.case.args),
            dtypes=tuple(dtype for _, dtype in call.case.args),
            options=dict(call.case.options),
            seed=self.task.seed,
            example=call.example,
            line=line or (self._line(label, number) if name != "state" else ""),
        )

    def _add(self, example: Counterexample) -> None:
        alike = [
            one for one in self.examples if (one.stage, one.name) == (example.stage, example.name)
        ]
        if len(alike) < _MOST_EXAMPLES:
            self.examples.append(example)


def _through_a_kernel(program: ProgramData) -> Callable[..., Any]:
    """Return a program whose results a kernel copies: checks judge the answers of kernels only."""
    import jax
    from jax.experimental import pallas as pl

    def copy(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    def copied(value: Any) -> Any:
        return pl.pallas_call(copy, out_shape=jax.ShapeDtypeStruct(value.shape, value.dtype))(value)

    return lambda *args: jax.tree.map(copied, program(*args))


def _shapes(case: Case) -> str:
    shapes = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in case.args)
    options = ", ".join(f"{name}={value}" for name, value in case.options.items())
    return f"{shapes}; {options}" if options else shapes


def _failed_stage(name: str, problem: Failed) -> Stage:
    return Stage(name=name, verdict="failed", reason=problem.name, sentence=problem.sentence)


def _of_example(name: str, example: Counterexample, calls: int, share: float = 0.0) -> Stage:
    verdict: Verdict = "failed"
    return Stage(
        name=name,
        verdict=verdict,
        reason=example.name,
        sentence=example.sentence,
        calls=calls,
        share=share,
    )


def _fact(error: PallasError, name: str) -> str:
    """Return a fact of an error's explanation, such as its cause; "" without one."""
    facts = () if error.explanation is None else error.explanation.facts
    return next((fact.text for fact in facts if fact.name == name), "")


def _sentence(error: PallasError) -> str:
    """Return what an error says, in a line: its summary, or else its first line."""
    return first_line(error) if error.explanation is None else error.explanation.summary


def _without_tuning(reference: Callable[..., Any], call: DrawnCall) -> Callable[..., Any]:
    """Return the reference with the options of a call."""
    options = {
        name: value
        for name, value in call.case.options.items()
        if name not in call.arguments.tuning
    }

    def with_options(*args: Any) -> Any:
        return reference(*args, **options)

    return with_options if options else reference


def _gradient_call(
    reference: Callable[..., Any], args: Sequence[Any], wrt: Sequence[int]
) -> tuple[tuple[Any, ...], Callable[..., Any]]:
    """Return the arguments of a derivative, with what it is multiplied by, and its reference."""
    import jax

    outputs = jax.eval_shape(reference, *args)
    rng = np.random.default_rng(0)
    cotangents = [
        rng.standard_normal(leaf.shape).astype(leaf.dtype) for leaf in jax.tree.leaves(outputs)
    ]
    count, tree = len(args), jax.tree.structure(outputs)

    def derivative(*values: Any) -> Any:
        inputs = list(values[:count])

        def of_some(*some: Any) -> Any:
            for position, value in zip(wrt, some, strict=True):
                inputs[position] = value
            return reference(*inputs)

        _, pull = jax.vjp(of_some, *(inputs[position] for position in wrt))
        return pull(jax.tree.unflatten(tree, values[count:]))

    return (*args, *cotangents), derivative
