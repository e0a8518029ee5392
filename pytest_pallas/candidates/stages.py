"""The stages that a candidate goes through, in order of cost."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pallas_sim import Limits, simulate
from pallas_sim.chips import Label
from pallas_sim.errors import MissingRuleError, OptionError, PallasError, first_line
from pytest_pallas.backends.ending import OverdueError, ending_whole
from pytest_pallas.candidates.codec import ProgramData
from pytest_pallas.candidates.criteria import Judge, difference
from pytest_pallas.candidates.jail import SandboxLimits
from pytest_pallas.candidates.mistakes import of_error
from pytest_pallas.candidates.sandbox import Case, Failed, Traced, warm_sandbox
from pytest_pallas.candidates.source import CandidateSource
from pytest_pallas.candidates.task import LARGE, DrawnCall, KernelTask
from pytest_pallas.candidates.verdicts import (
    Counterexample,
    Report,
    Stage,
    Verdict,
    Work,
    score_of,
)
from pytest_pallas.candidates.work import problem_with, static_problem, work_of
from pytest_pallas.errors import BackendUnavailableError, KernelReferenceError, NotApplicableError
from pytest_pallas.grid.kernel_calls import kernel_calls, live_kernel_calls

#: Counterexamples that a stage reports.
_MOST_EXAMPLES = 3

#: What is no mistake where a candidate need not serve a dtype: the chip does not have it there.
_UNSERVED = frozenset({"raises", "does not compile", "too much memory"})

#: Likewise, where arrays are large.
_UNSERVED_LARGE = _UNSERVED | {"timed out", "too many steps"}

#: The part of the budget at which a stage ends, where later ones need the rest.
_SHARES = {"hidden": 0.7, "ordered": 0.9}

#: A run that is ended does not end after this part of the budget, and so many times the longest
#: run, in seconds of CPU time: other processes may delay a run.
_ENDLESS_SHARE, _ENDLESS_RATIO = 1 / 12, 10.0


def judged(candidate: CandidateSource, judge: Judge) -> Report:
    """Judge a candidate."""
    warm_sandbox().start()  # which takes seconds that are not the candidate's
    return _Judgement(candidate, judge).report()


@dataclass
class _Judgement:
    """The judgement of one candidate.

    Attributes:
      traced: what the sandbox gave, by chip.
      stages: the verdicts so far.
      examples: the counterexamples so far.
      works: whether the program of a call has a kernel.
      unserved: why the candidate does not serve a dtype or an option, by its name.
      endless: the sentence of runs that did not end, by call.
      longest: seconds of CPU time of the longest of those that did.
      stage: the current one.
      cut: whether its time ended before it did.
    """

    candidate: CandidateSource
    judge: Judge
    traced: dict[str, Traced] = field(default_factory=dict[str, Traced])
    stages: list[Stage] = field(default_factory=list[Stage])
    examples: list[Counterexample] = field(default_factory=list[Counterexample])
    work: Work = field(default_factory=Work)
    works: dict[tuple[str, int], bool] = field(default_factory=dict[tuple[str, int], bool])
    unserved: dict[str, str] = field(default_factory=dict[str, str])
    endless: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    longest: float = 0.0
    undecided: str = ""
    stage: str = ""
    cut: bool = False
    begun: float = field(default_factory=time.monotonic)

    def report(self) -> Report:
        """Run the stages, and return what they say."""
        judge, task = self.judge, self.task
        some = [*self.first, *judge.measured[1:2]]  # and a large one
        stages = {
            "imports": self.imports,
            "traces": self.traces,
            "kernel": self.kernel,
            "compiles": self.compiles,
            "given": lambda: self.calls("given", self.first, ("forward", "grid", "immutability")),
            "hidden": lambda: self.calls("hidden", self.hidden, ("forward",)),
            "ordered": lambda: self.calls(
                "ordered", some, ("races", "dma", "deadlock", "schedule")
            ),
            "deterministic": lambda: self.calls("deterministic", some, ("determinism",)),
            "gradients": self.gradients,
            "cost": self.cost,
        }
        if task.fault:
            self.undecided = task.fault
        for name, run in stages.items():
            before, self.stage, self.cut = time.monotonic(), name, False
            failed = any(stage.verdict == "failed" for stage in self.stages)
            fatal = any(
                stage.verdict == "failed" and stage.name in ("imports", "traces")
                for stage in self.stages
            )
            if self.undecided or fatal or (failed and judge.stop):
                stage = Stage(name=name, verdict="not run")
            else:
                stage = run()
            self.stages.append(replace(stage, seconds=round(time.monotonic() - before, 4)))
        listed = tuple(self.stages)
        self.stage = ""
        unusual = tuple(self._unusual()) if not self.undecided else ()
        passed = not self.undecided and all(
            stage.verdict in ("passed", "not applicable") for stage in listed
        )
        functions = {
            f"{label} {_shapes(call.case)}": program
            for label, traced in self.traced.items()
            for number, program in traced.programs.items()
            for call in task.calls[number : number + 1]
        }
        digests = {name: program.digest for name, program in functions.items()}
        together = hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest()[:32]
        first = next(iter(self.traced.values()), None)
        return Report(
            name=self.candidate.name,
            passed=passed,
            score=0.0 if self.undecided else score_of(listed),
            stages=listed,
            counterexamples=tuple(self.examples),
            digest=together if digests else "",
            files=self.candidate.digests,
            programs=digests,
            functions=functions,
            work=self.work,
            task=task.doubts,
            unusual=unusual,
            unserved=tuple(f"{name}: {reason}" for name, reason in self.unserved.items()),
            in_force=() if first is None else first.in_force,
            targets=tuple(map(_text, judge.labels)),
            seed=task.seed,
            undecided=self.undecided,
            printed="" if first is None else first.output,
            seconds=round(time.monotonic() - self.begun, 4),
        )

    # The stages.

    @property
    def task(self) -> KernelTask:
        """The task."""
        return self.judge.task

    @property
    def simulators(self) -> Sequence[Label]:
        """The simulated targets."""
        return [label for label in self.judge.labels if label.name.endswith("-sim")]

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
            self.traced[_text(label)] = warm_sandbox().trace(
                self.candidate.files,
                self.candidate.module,
                self.candidate.function,
                cases,
                target=label.target,
                again=again,
                package=self.candidate.package,
                folder=self.candidate.folder,
                limits=SandboxLimits(seconds=max(1.0, min(self._left(), 60.0))),
            )
            if self.traced[_text(label)].failed is not None:
                break
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
            for number, call in enumerate(self.task.calls):
                problem = _misfit(traced, number, call)
                if problem is not None:
                    return _failed_stage("traces", problem)
                if number in traced.refused and not call.hidden:
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
        without: list[tuple[str, int, tuple[str, str]]] = []
        looked = 0
        for label, traced in self.traced.items():
            for number, program in traced.programs.items():
                if number >= len(self.task.calls):
                    continue
                looked += 1
                problem = _static_problem(program)
                self.works[label, number] = bool(live_kernel_calls(program.jaxpr))
                if problem is not None and not self.task.calls[number].hidden:
                    return self._without_work(label, number, problem)
                if problem is not None:
                    without.append((label, number, problem))
        for label, traced in self.traced.items():
            try:
                for number in self.judge.measured:
                    if not self.works.get((label, number)):
                        continue
                    with self._limited(label, number):
                        problem = self._measured(label, number, traced.programs[number])
                        if problem is not None:
                            return self._without_work(label, number, problem)
                    if (label, number) in self.endless:
                        return self._without_work(label, number, self._endless(label, number))
            except Exception:  # the next stages say what is wrong with such a program
                continue
        if 2 * len(without) > looked - len(self.first) * len(self.traced):
            label, number, (name, sentence) = without[0]
            sentence = f"for {len(without)} hidden calls: {sentence}"
            return self._without_work(label, number, (name, sentence))
        return Stage(name="kernel", verdict="passed", calls=looked, share=1.0)

    def _measured(self, label: str, number: int, program: ProgramData) -> tuple[str, str] | None:
        """Run a call to see where its work is done; return what is wrong with that."""
        target = Label.of(label).target
        whole, integers, copies = self.judge.whole(target, number)
        args = self.task.calls[number].arguments.args
        work = work_of(program.jaxpr, args, target, self.judge.timeout, integers=integers)
        if number == 0:
            self.work = work
        moves = number > 0 and not whole and not self.work.copies  # what copies all by chance
        return problem_with(program.jaxpr, work, whole, copies=copies or moves)

    def _without_work(self, label: str, number: int, problem: tuple[str, str]) -> Stage:
        name, sentence = problem
        self._add(self._example("kernel", label, number, name, sentence))
        return _failed_stage("kernel", Failed(stage="kernel", name=name, sentence=sentence))

    def compiles(self) -> Stage:
        """Compile the first call where a compiler is installed."""
        compilers = [label for label in self.judge.labels if label.name.endswith("-compile")]
        missing = ""
        compiled = 0
        for label in compilers:
            traced = self._traced_for(label)
            if traced is None or 0 not in traced.programs:
                continue
            problem = self._checked("compiles", _text(label), 0, traced.programs[0], "")
            if isinstance(problem, str):
                missing = problem or "the budget ended"
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
                if self.cut:
                    left += 1
                    continue
                if not self._serves(traced, number):
                    continue
                problem = self._call(stage, label, traced, number, checks)
                left += self.cut
                if self.undecided:
                    return Stage(name=stage, verdict="not run", sentence=self.undecided)
                if problem == "":
                    continue
                variant = self.task.calls[number].variant
                unserved = _UNSERVED_LARGE if variant == LARGE else _UNSERVED
                if variant and isinstance(problem, Counterexample) and problem.name in unserved:
                    self.unserved[variant] = problem.sentence
                    continue
                applied = True
                judged += 1
                if problem is None:
                    right += 1
                    continue
                assert isinstance(problem, Counterexample)
                first = first or problem
                self._add(problem)
        if first is None and left and not judged:
            return self._out_of_time()
        if not numbers or not applied:
            return Stage(name=stage, verdict="not applicable")
        share = round(right / judged, 4)
        if first is not None:
            return _of_example(stage, first, judged, share)
        calls = "call was judged in full" if left == 1 else "calls were judged in full"
        sentence = f"the budget ended before {left} more {calls}" if left else ""
        return Stage(name=stage, verdict="passed", calls=judged, share=share, sentence=sentence)

    def _out_of_time(self) -> Stage:
        budget = f"the budget of {self.judge.budget:g} s"
        self.undecided = f"{budget} ended before the stage {self.stage} did; give more"
        return Stage(name=self.stage, verdict="not run", sentence=self.undecided)

    def _call(
        self, stage: str, label: str, traced: Traced, number: int, checks: Sequence[str]
    ) -> Counterexample | str | None:
        """Judge one call; "" if none of the checks applies, None if all is right."""
        if number in traced.refused:
            return self._refusal(stage, label, number, traced.refused[number])
        outcome: Counterexample | str | None = ""
        if stage in ("given", "hidden") and number in self.judge.measured:
            checks = (*checks, "padding", *self.judge.of_relations)  # a few runs more
        for name in checks:
            problem = self._checked(stage, label, number, traced.programs[number], name)
            if isinstance(problem, Counterexample) or self.undecided or self.cut:
                return problem if problem is not None else outcome
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
                if self.cut:
                    return self._out_of_time()
                if isinstance(problem, Counterexample):
                    self._add(problem)
                    return _of_example("gradients", problem, judged)
        return Stage(name="gradients", verdict="passed", calls=judged, share=1.0)

    def _unusual(self) -> Iterator[str]:
        """Yield how the answers differ for NaN, infinity and huge numbers, if all else is right."""
        import jax

        if any(stage.verdict == "failed" for stage in self.stages):
            return
        label, traced = next(iter(self.traced.items()))
        for name, args, expected in self.judge.unusual:
            program = traced.programs.get(self.judge.smallest)
            if program is None or self._left() <= 0:
                return
            text = ""
            try:
                with self._limited(label, self.judge.smallest):
                    limits = Limits(out_of_bounds="fill")
                    run = simulate(program, *args, target=Label.of(label).target, limits=limits)
                    text = difference(name, expected, jax.tree.leaves(run.values))
            except PallasError:
                continue
            if text:
                yield text

    def cost(self) -> Stage:
        """Say what the largest call costs."""
        work = self.work
        sentence = (
            f"kernels do {work.inside:,} operations ({100 * work.share:.0f} %) on "
            f"{work.inside_bytes:,} bytes, other operations {work.outside:,}"
        )
        return Stage(name="cost", verdict="passed", sentence=sentence, share=1.0)

    # One call.

    def _left(self) -> float:
        """Seconds of the budget that the current stage may take yet."""
        budget = self.judge.budget * _SHARES.get(self.stage, 1.0)
        return self.begun + budget - time.monotonic()

    @contextlib.contextmanager
    def _limited(self, label: str, number: int) -> Generator[None]:
        """End what a call runs when the stage's time ends.

        Raises:
          PallasError: of what runs, unless its time ended.
        """
        begun, left = time.process_time(), self._left()
        few = self.stage in ("kernel", "given", "hidden")  # runs
        self.judge.expected.running = False
        line = ""
        if left <= 0:
            self.cut = True
        try:
            with ending_whole(max(left, 0.001)):
                yield
            if few:
                self.longest = max(self.longest, time.process_time() - begun)
            return
        except OverdueError as late:
            line = late.line
        except PallasError as error:
            if not error.timed_out:
                raise
            line = getattr(error, "line", "")
        seconds = time.process_time() - begun
        if self.judge.expected.running:
            self.undecided = f"the reference did not end in {seconds:.3g} s"
            return
        fair = self.judge.timeout
        if few:
            share = _ENDLESS_SHARE * self.judge.budget
            fair = min(fair, max(share, _ENDLESS_RATIO * self.longest))
        if seconds < 0.9 * fair:
            self.cut = True
        else:
            where = f", at {line}" if line else ""
            self.endless[label, number] = f"a run did not end in {seconds:.2g} s of CPU time{where}"

    def _serves(self, traced: Traced, number: int) -> bool:
        """Return whether a call counts: it must, or the candidate serves its dtype or option.

        A candidate serves what it traces without an error, to results of the reference's dtypes.
        """
        call = self.task.calls[number]
        if not call.variant:
            return True
        refused, program = traced.refused.get(number), traced.programs.get(number)
        if refused is not None or program is None:
            self.unserved[call.variant] = "" if refused is None else refused.sentence
            return False
        dtypes = [aval.dtype.name for aval in program.jaxpr.out_avals]
        if dtypes != list(call.outputs) and len(dtypes) == len(call.outputs):
            self.unserved[call.variant] = f"the result has the dtype {', '.join(dtypes)}"
            return False
        return True

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
        args, reference = call.arguments.args, call.reference
        if gradient:
            args, reference = self.judge.gradient(number)
        if self._left() <= 0:
            self.cut = True
            return ""
        keywords: dict[str, Any] = {"checks": name} if name else {}
        for property_name, value in self.judge.properties.items():
            of_calls = property_name in ("relations", "ignored")  # which look at options
            if property_name in ("tolerance", "nan_ok") or not (
                gradient or (of_calls and call.case.options)
            ):
                keywords[property_name] = value
        without = not self.works.get((label, number), True)
        if gradient:  # which may be left to jnp
            without = not live_kernel_calls(program.jaxpr)
        try:
            with self._limited(label, number):
                self.judge.checker(label)(
                    _through_a_kernel(program) if without else program,
                    args,
                    reference,
                    name=self.candidate.function,
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
            example = self._example(stage, label, number, "", "", line=" ")
            return of_error(example, error, name, lambda: self._line(label, number))
        except Exception as error:  # a program that JAX cannot trace again
            sentence = f"{type(error).__name__}: {first_line(error)}"
            return self._example(stage, label, number, "no program", sentence)
        if (label, number) in self.endless:
            name, sentence = self._endless(label, number)
            return self._example(stage, label, number, name, sentence)
        return "" if self.cut else None

    def _endless(self, label: str, number: int) -> tuple[str, str]:
        return "timed out", self.endless[label, number]

    def _line(self, label: str, number: int) -> str:
        """Return the line of the kernel's call."""
        traced = self.traced.get(label) or self._traced_for(Label.of(label))
        program = None if traced is None else traced.programs.get(number)
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


def _text(label: Label) -> str:
    return f"{label.name}:{label.target}"


def _through_a_kernel(program: ProgramData) -> Callable[..., Any]:
    """Return a program whose results a kernel copies: checks judge the answers of kernels only."""
    import jax
    from jax.experimental import pallas as pl

    def copy(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    def copied(value: Any) -> Any:
        return pl.pallas_call(copy, out_shape=jax.ShapeDtypeStruct(value.shape, value.dtype))(value)

    return lambda *args: jax.tree.map(copied, program(*args))


def _static_problem(program: ProgramData) -> tuple[str, str] | None:
    try:
        return static_problem(program.jaxpr)
    except Exception as error:  # bytes that a candidate made by itself
        return "no program", f"{type(error).__name__}: {first_line(error)}"


def _misfit(traced: Traced, number: int, call: DrawnCall) -> Failed | None:
    """Return why an answer is none of a call: the candidate wrote it itself."""
    program = traced.programs.get(number)
    if program is None and number not in traced.refused:
        sentence = f"it did not answer for call {number}"
    elif program is not None and call.case.args != tuple(
        (tuple(aval.shape), aval.dtype.name) for aval in program.jaxpr.in_avals
    ):
        sentence = f"its program for call {number} has other arguments than the call"
    else:
        return None
    return Failed(stage="traces", name="no answer", sentence=sentence)


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
