"""What a check gets and what it returns: ``CheckContext`` and ``CheckResult``.

``run`` runs the kernel, or another function, on the context's backend. ``expect`` gives the oracle
and the baseline, and ``judge`` compares outputs with them, ``exactly`` where that is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from pallas_sim.chips import ACCUMULATIONS, accumulations
from pallas_sim.chips import arithmetic_of as arithmetic_of_chip
from pallas_sim.coverage import Reached
from pallas_sim.dtypes import is_float, same_bits, wide
from pallas_sim.errors import Fact, KernelError, OptionError, PallasError, first_line
from pytest_pallas.backends.ending import raised_words
from pytest_pallas.backends.execution import brief
from pytest_pallas.backends.processes import agree, gang
from pytest_pallas.backends.protocol import (
    Backend,
    Call,
    Fill,
    Outcome,
    RunSettings,
    Schedule,
    chip_of,
)
from pytest_pallas.backends.spreading import LocalShards, describe_index
from pytest_pallas.backends.tracing import traced_jaxpr
from pytest_pallas.compile.costs import RecordedCosts
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.errors import (
    KERNEL_RUNS,
    RAISED_BY_KERNEL,
    GangError,
    NotApplicableError,
    PeerError,
    UnsupportedKernelError,
    facts_of,
)
from pytest_pallas.grid.kernel_calls import unsupported
from pytest_pallas.judge.arithmetic import ChipArithmetic, arithmetic_of, lowest_precision
from pytest_pallas.judge.judgement import Expected, compare_trees
from pytest_pallas.judge.oracle import ExpectedCache
from pytest_pallas.judge.references import Leaves, flatten
from pytest_pallas.judge.tolerance import Comparison, ProductPrecision, Tolerance
from pytest_pallas.record import Note, Orders
from pytest_pallas.spec import Properties

type _Array = np.ndarray[Any, Any]

#: Integers up to this size count as small: the product of two is exact in bfloat16, and a sum of
#: 2**15 such products is exact in float32.
SMALL = 16


@dataclass(frozen=True, kw_only=True)
class ComparisonPeer:
    """A peer: a backend or an implementation that computes the same as the kernel.

    Attributes:
      name: of the implementation, or the label of the backend.
      function: called like the kernel.
      backend: the backend that runs it.
      is_kernel: False for an implementation: it need not contain a Pallas kernel, and gets only the
        tuning that it accepts.
    """

    name: str
    function: Callable[..., Any]
    backend: Backend
    is_kernel: bool = True


@dataclass(frozen=True, kw_only=True)
class CheckContext(Properties):
    """The input of a check: a kernel, its reference, and one drawn call.

    ``Properties`` has the properties of its outputs.

    Attributes:
      kernel: called ``kernel(*args, **options, **tuning)``.
      reference: called ``reference(*args, **options)``; None for checks that need none.
      arguments: the drawn call.
      backend: where the kernel runs.
      settings: how it runs; see ``RunSettings``.
      others: the peers, for the cross check.
      tolerance: the rule of judgement.
      tolerance_given_by: where it is given, for messages; "" for the default.
      check_dtype: whether the kernel must return the reference's dtypes.
      runs: cache of runs under other schedules.
      cache: cache of expected values.
      typical: whether this is a typical call of the spec, rather than a drawn one.
      costs: limits on the costs of code on compiling backends; None without limits.
      claimed: the backends that the spec claims, as in ``KernelSpec.claimed``.
      redundant: synchronisation that no mesh needs, as in ``KernelSpec.redundant``.
      explained: whether the error of a failure has an explanation; without, it has only a headline.
      run_seconds: the seconds of each run of the kernel; see ``count_run``.
      run_steps: the equations of each, likewise.
      run_kernels: the kernels of all of them.
      coverage: ``run`` adds what of the kernel ran, whatever becomes of the check.
      orders: the sanitizers of schedules add in how many orders it ran, likewise.
    """

    kernel: Callable[..., Any]
    reference: Callable[..., Any] | None
    arguments: Arguments
    backend: Backend
    settings: RunSettings = field(default_factory=RunSettings)
    others: Sequence[ComparisonPeer] = ()
    tolerance: Tolerance = field(default_factory=Tolerance)
    tolerance_given_by: str = ""
    check_dtype: bool = True
    runs: Any = None
    cache: ExpectedCache = field(default_factory=ExpectedCache)
    typical: bool = False
    costs: RecordedCosts | None = None
    claimed: Sequence[str] = ()
    redundant: Mapping[str, str] = field(default_factory=dict[str, str])
    explained: bool = True
    run_seconds: list[float] = field(default_factory=list[float], repr=False, compare=False)
    run_steps: list[int] = field(default_factory=list[int], repr=False, compare=False)
    run_kernels: list[Any] = field(default_factory=list[Any], repr=False, compare=False)
    coverage: list[tuple[Reached, ...]] = field(
        default_factory=list[tuple[Reached, ...]], repr=False, compare=False
    )
    orders: list[Orders] = field(default_factory=list[Orders], repr=False, compare=False)


@dataclass(frozen=True)
class ComparedOutputs:
    """The outputs of a kernel and the expected values, from which goldens are made.

    Attributes:
      outputs: the kernel's outputs, by path.
      expected: their expected values.
      context: the call that these are of.
    """

    outputs: Leaves
    expected: Expected
    context: CheckContext


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The result of a check on one context.

    Attributes:
      comparisons: one for each thing compared, passed or not.
      outcome: the kernel's run, which identifies the program that wrote a failing element.
      seconds: time spent tracing, compiling and running the kernel; 0 if ``run`` measured it
        (``CheckContext.run_seconds``).
      subject: what was compared if not the plain output, such as "gradient".
      arguments: the call that was compared if not the drawn one, for messages.
      notes: for the record; a plain string is a note of no kind.
      evidence: the part of this context that ``Check.conclude`` gets at the end; None for nothing.
      answer: the outputs to keep as a golden; None to keep nothing.
      goldens: counts of recorded, compared and other goldens.
      used_goldens: names of the goldens that the outputs were compared with.
      schedule: under which outputs were wrong, unless the default.
      side: the call and the run of another implementation whose output is the worst, for messages.
    """

    comparisons: Sequence[Comparison]
    outcome: Outcome | None = None
    seconds: float = 0.0
    subject: str = ""
    arguments: Arguments | None = None
    notes: tuple[Note | str, ...] = ()
    evidence: Any = None
    answer: ComparedOutputs | None = None
    goldens: Mapping[str, int] = field(default_factory=dict[str, int])
    used_goldens: tuple[str, ...] = ()
    schedule: Schedule | None = None
    side: tuple[CheckContext, Outcome] | None = None

    @property
    def failed(self) -> Comparison | None:
        """The worst failed comparison, or None if all passed."""
        return worst_failed(self.comparisons)


def worst_failed(comparisons: Sequence[Comparison]) -> Comparison | None:
    """Return the failed comparison with the largest error, or None if all passed."""
    failures = [comparison for comparison in comparisons if not comparison.passed]
    return max(failures, key=lambda comparison: comparison.error, default=None)


def run(
    context: CheckContext,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    jit: bool | None = None,
    races: bool = True,
    fill: Fill | None = None,
    needs_kernel: bool = True,
    shards: bool = False,
    **rest: Any,
) -> Outcome:
    """Run ``function`` on the context's backend with the context's options.

    Outputs that are spread over several processes are gathered, so that they are numpy arrays like
    all others. With ``shards=True`` each process gets what it holds, for ``judge``.

    ``races=False`` detects neither races nor leftover copies and semaphores, ``fill`` fills
    uninitialized memory, ``needs_kernel=False`` accepts a function without a kernel, and ``rest``
    are other fields of the call (see ``Call``).

    Raises:
      KernelError: the kernel raised.
      UnsupportedKernelError: it raised, and the backend cannot run kernels like it.
    """
    made = call(context, function, args, jit=jit)
    if not races:
        made = made.with_settings(races=False, dma=False)
    made = replace(made, fill=fill, needs_kernel=needs_kernel, **rest)
    outcome = context.backend.run(made)
    count_run(context, outcome)
    if outcome.exploration is not None:
        context.orders.append(orders_of_call(outcome.exploration, made.settings.schedules))
    raise_error(context, outcome, made.schedule)
    return outcome if shards else gathered(outcome, context.settings.timeout)


def orders_of_call(exploration: Any, most: int) -> Orders:
    """Return the orders of a call, which was explored with at most so many runs."""
    verdict = exploration.verdict
    is_open = verdict == "open"
    return Orders(
        proved=int(verdict == "proved"),
        wrong=int(verdict == "wrong"),
        open=int(is_open),
        unconfirmed=int(verdict == "wrong" and not exploration.confirmed),
        runs=exploration.runs,
        classes=exploration.classes,
        tried=exploration.classes if is_open else 0,
        left=exploration.left,
        most=most if is_open else 0,
        reasons=tuple(map(str, exploration.reasons)),
        stopped=(exploration.stopped,) if is_open and not exploration.left else (),
    )


def count_run(context: CheckContext, outcome: Outcome) -> None:
    """Count a run of the kernel, also one that a cache had, and what of the kernel ran."""
    context.run_seconds.append(outcome.seconds)
    context.run_steps.append(outcome.steps)
    context.run_kernels.extend(outcome.kernels)
    context.coverage.append(outcome.coverage)


def witness_of_call(context: CheckContext) -> str:
    """Return the order that the call is to run in, as ``Schedule.witness``; "" for none."""
    settings = context.settings
    if settings.witness or not settings.saved_witness:
        return settings.witness
    repeats: Callable[[Call, str], bool] = getattr(context.backend, "repeats", lambda *_: False)
    called = call(context, context.kernel, context.arguments.args)
    return settings.saved_witness if repeats(called, settings.saved_witness) else ""


def raise_error(context: CheckContext, outcome: Outcome, schedule: Schedule) -> None:
    """Raise the error of a run under a schedule, if it has one; the errors are those of ``run``."""
    if outcome.error is None:
        return
    if isinstance(outcome.error, OptionError) and schedule.witness:
        raise OptionError(f"--pallas-witness={schedule.witness}: {outcome.error}")
    reason = unsupported(
        outcome.kernels,
        context.backend.name,
        context.backend.platform,
        interpreting=context.backend.kind == "interpreting",
    )
    if reason is not None:
        raise UnsupportedKernelError(reason)
    raise under(schedule, as_kernel_error(outcome.error))


def call(
    context: CheckContext,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    jit: bool | None = None,
) -> Call:
    """Return the call ``function(*args)`` with the context's options, for a backend."""
    made = Call(
        function=function,
        args=args,
        options={**context.arguments.options, **context.arguments.tuning},
        settings=context.settings,
    )
    return made if jit in (None, made.settings.jit) else made.with_settings(jit=jit)


def judge(
    context: CheckContext, outputs: Any, expected: Expected, *, exact: bool = False
) -> Sequence[Comparison]:
    """Compare a kernel's outputs with the expected values, by the context's tolerance."""
    return judge_leaves(context, flatten(outputs), expected, exact=exact)


def judge_leaves(
    context: CheckContext, outputs: Leaves, expected: Expected, *, exact: bool = False
) -> Sequence[Comparison]:
    """As ``judge``, of outputs by their paths."""

    def compare(leaves: Leaves, present: Mapping[str, Any]) -> Sequence[Comparison]:
        return compare_trees(
            leaves,
            expected,
            tolerance=context.tolerance,
            exact=exact,
            check_dtype=context.check_dtype,
            explained=context.explained,
            present=present,
        )

    return compare_shards(outputs, compare)


def as_kernel_error(error: Exception) -> PallasError:
    """Wrap the error of a kernel in a ``KernelError``, so that reports can attribute it."""
    if isinstance(error, PallasError):
        return error
    name, text = raised_words(error)
    wrapped = KernelError(f"the kernel raised {name}: {brief(text)}")
    wrapped.__cause__ = error
    facts_of(wrapped).shared = facts_of(error).shared
    return wrapped


def under(schedule: Schedule, error: PallasError) -> PallasError:
    """Add the schedule of its run to an error, unless that is the default schedule."""
    if schedule == Schedule():
        return error
    if schedule.witness:  # which is a fact of the message
        facts_of(error).schedule = facts_of(error).schedule or schedule
        return error
    described = error.with_message(f"{error}\n  with {schedule}")
    facts_of(described).schedule = schedule
    return described


def expect(context: CheckContext, args: tuple[Any, ...] | None = None) -> Expected:
    """Return the oracle and baseline of the context's call, or of that with other arguments.

    The baseline's products have the precision that the kernel asks for in the context's call.
    """
    assert context.reference is not None
    expected = context.cache.get(
        context.reference,
        context.arguments.args if args is None else args,
        context.arguments.options,
        nan_ok=context.nan_ok,
        products=product_precision(context),
    )
    return expected.with_chip(lambda: approximations(context))


def product_precision(context: CheckContext) -> ProductPrecision | None:
    """Return the lowest precision that the kernel asks for products of float32 in this call.

    None for float32, which calls that JAX cannot trace are taken to have, and what interpreters and
    simulated TPUs with the arithmetic ``"float32"`` compute in.
    """
    jaxpr = _chip_jaxpr(context)
    return None if jaxpr is None else lowest_precision(jaxpr, context.backend.platform)


def approximations(context: CheckContext) -> ChipArithmetic | None:
    """Return the chip's arithmetic, with those functions only that the kernel wants approximate."""
    chip = chip_arithmetic(context)
    if chip is None or (chip.sums is None and not chip.approximate):
        return None
    return replace(chip, functions=chip.approximate)


def chip_arithmetic(context: CheckContext) -> ChipArithmetic | None:
    """Return how the chip computes what the kernel in the context's call does.

    None for float32, which chips that are not known, interpreters, and calls that JAX cannot trace
    are taken to have.
    """
    jaxpr = _chip_jaxpr(context) if context.backend.platform == "gpu" else None
    if jaxpr is None:
        return None
    if context.backend.kind == "hardware":
        device: Any = jax.local_devices(backend="gpu")[0]
        known = ACCUMULATIONS.get(int(float(device.compute_capability)), {})
    else:
        known = accumulations(chip_of(context.backend).name, context.settings.arithmetic)
    return arithmetic_of(jaxpr, known) if known else None


def _chip_jaxpr(context: CheckContext) -> Any:
    """Trace the context's call; None if JAX cannot trace it, or no product is a chip's."""
    backend, arithmetic = context.backend, context.settings.arithmetic
    if backend.kind not in ("simulating", "hardware"):
        return None
    simulated = backend.kind == "simulating" and backend.platform == "tpu"
    if simulated and arithmetic_of_chip(chip_of(backend).name, arithmetic) == "float32":
        return None
    return traced_jaxpr(call(context, context.kernel, context.arguments.args), backend)


def exactly(context: CheckContext) -> bool:
    """Return whether the output must be bitwise equal to the oracle.

    The context must be exact, and every float input hold only small integers. If the kernel's
    products have less than float32, the baseline's must be exact in that precision. If the chip's
    sums have fewer bits than float32, the oracle's must fit; if its functions are not rounded
    correctly, such as a division, none of their errors may change the rounded oracle.
    """
    if not context.exact:
        return False
    most = SMALL if context.exact is True else context.exact
    for leaf in jax.tree.leaves(context.arguments.args):
        if hasattr(leaf, "dtype") and is_float(leaf.dtype):
            values = wide(np.asarray(leaf))
            if not (np.abs(values) <= most).all() or (values != np.rint(values)).any():
                return False
    if product_precision(context) is not None and not _is_exact(expect(context)):
        return False
    chip = chip_arithmetic(context)
    if chip is None or not (chip.functions or (chip.sums and chip.sums.accumulation.is_narrow)):
        return True
    return _is_exact_on(chip, expect(context))


def _is_exact_on(chip: ChipArithmetic, expected: Expected) -> bool:
    """Return whether the outputs are the rounded oracle with all errors of the chip."""
    errors = expected.errors_of_chip(chip)
    if chip.sums is not None and chip.sums.accumulation.is_narrow:
        return not any(draws.any() for draws in errors.values())
    oracle = dict(expected.oracle)
    with np.errstate(all="ignore"):
        return all(
            same_bits((oracle[path] + draw).astype(answer.dtype), oracle[path].astype(answer.dtype))
            for path, answer in expected.baseline
            for draw in errors.get(path, ())
        )


def _is_exact(expected: Expected) -> bool:
    """Return whether the baseline is the oracle, rounded to its dtypes."""
    with np.errstate(all="ignore"):
        return all(
            np.array_equal(wide(oracle.astype(answer.dtype)), wide(answer), equal_nan=True)
            for (_, oracle), (_, answer) in zip(expected.oracle, expected.baseline, strict=True)
        )


# Outputs that are spread over several processes: each judges what it holds.


#: The step of ``agree`` after a check.
JUDGE = "judge"

#: Compares outputs by path, given where those are present that are not whole.
type Compare = Callable[[Leaves, Mapping[str, _Array]], Sequence[Comparison]]


def gathered(outcome: Outcome, timeout: float) -> Outcome:
    """Gather the whole arrays of an outcome from all processes; all of them must call it.

    Args:
      outcome: of a call that returned.
      timeout: seconds to wait for the others, so that none of them gathers alone.

    Raises:
      PeerError: the call raised in another process.
      GangError: another process does something else.
    """
    leaves = jax.tree.leaves((outcome.values, outcome.inputs))
    if not any(isinstance(leaf, LocalShards) for leaf in leaves):
        return outcome
    agree("gather", timeout=timeout)
    values, inputs = jax.tree.map(
        lambda leaf: leaf.gather() if isinstance(leaf, LocalShards) else leaf,
        (outcome.values, outcome.inputs),
    )
    return replace(outcome, values=values, inputs=inputs)


def compare_shards(outputs: Leaves, compare: Compare) -> Sequence[Comparison]:
    """Compare outputs, of those that are spread only what this process holds.

    Where devices hold different copies of one part, each is compared, and the worst is returned.
    """
    spread = {path: leaf.layers() for path, leaf in outputs if isinstance(leaf, LocalShards)}
    if not spread:
        return compare(outputs, {})
    shards = {path: leaf for path, leaf in outputs if isinstance(leaf, LocalShards)}
    of_layers: list[Sequence[Comparison]] = []
    for number in range(max(map(len, spread.values()))):
        layers = {path: all_[min(number, len(all_) - 1)] for path, all_ in spread.items()}
        leaves = [(path, layers[path][0] if path in layers else leaf) for path, leaf in outputs]
        compared = compare(leaves, {path: present for path, (_, present) in layers.items()})
        of_layers.append([_with_shard(comparison, shards, layers) for comparison in compared])
    return [
        max(of_output, key=lambda comparison: (not comparison.passed, comparison.multiple))
        for of_output in zip(*of_layers, strict=True)
    ]


def judge_together[T](judge: Callable[[], T], *, subject: str, timeout: float) -> T:
    """Judge in all processes, so that all of them go on, or none.

    What comes next, such as the next draw, depends on whether a check passed.

    Args:
      judge: raises if the check fails in this process.
      subject: what is judged; equal in all processes.
      timeout: seconds to wait for the others.

    Raises:
      Exception: what ``judge`` raised in this process.
      PeerError: it raised in another process.
      GangError: the processes judge different things.
    """
    __tracebackhide__ = True
    result: T | None = None
    problem: Exception | None = None
    try:
        result = judge()
    except GangError:
        raise
    except PeerError as error:
        if error.gone:
            # They judge the same, and have ended it, too.
            facts_of(error).shared = error.step == JUDGE
            raise
        problem = error
    except Exception as error:
        problem = error
    failed = problem is not None and not isinstance(problem, NotApplicableError)
    statements = agree(
        JUDGE,
        subject=subject,
        problem=f"{type(problem).__name__}: {first_line(problem)}" if failed and problem else "",
        kernel_raised=_kernel_raised(problem),
        value="not applicable" if problem is not None and not failed else "",
        timeout=timeout,
    )
    if len({statement.value for statement in statements if not statement.problem}) > 1:
        ends = "; ".join(f"process {peer.process}: {peer.value or 'passed'}" for peer in statements)
        raise GangError(f"{subject}: the check applies in some processes only: {ends}")
    if problem is not None:
        if isinstance(problem, PallasError):
            facts_of(problem).shared = True
        raise problem
    assert result is not None
    return result


def _kernel_raised(problem: Exception | None) -> bool:
    if isinstance(problem, PeerError):
        return problem.kernel_raised
    return isinstance(problem, RAISED_BY_KERNEL) and not isinstance(problem, KERNEL_RUNS)


def process_facts() -> Iterator[Fact]:
    """Name the process that a failure is of, where there are several."""
    processes = gang()
    if processes is not None:
        yield Fact("process", f"{processes.process} of {processes.count}, on {processes.host}")


def _with_shard(
    compared: Comparison,
    shards: Mapping[str, LocalShards],
    layers: Mapping[str, tuple[_Array, _Array]],
) -> Comparison:
    """Return a failed comparison with the shard that holds its worst element."""
    index, path = compared.worst_index, compared.where
    if compared.explanation is None or index is None or path not in shards:
        return compared
    holders = shards[path].holders(index, layers[path][0][index])
    if not holders:
        return compared
    devices = ", ".join(shard.device for shard in holders)
    noun = "device" if len(holders) == 1 else "devices"
    fact = Fact("shard", f"{describe_index(holders[0].index)} on {noun} {devices}")
    return replace(compared, explanation=compared.explanation.with_facts(fact))
