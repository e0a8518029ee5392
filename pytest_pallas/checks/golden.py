"""Goldens: keep the outputs of a check's kernel, or compare them with kept ones.

This is not a check of its own: it wraps every check whose result has an ``answer``. The comparison
is that of ``cross``: the golden is the oracle, with the same error of the baseline. The output must
be bitwise equal to the golden if nothing changed that determines its bits.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from pallas_sim.errors import OptionError
from pytest_pallas.checks import Check
from pytest_pallas.checks.context import CheckContext, CheckResult, ComparedOutputs
from pytest_pallas.checks.cross import apart, coarser
from pytest_pallas.checks.verdict import drawn_facts
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.errors import GoldenError
from pytest_pallas.judge.explanation import state
from pytest_pallas.judge.judgement import Expected, bitwise
from pytest_pallas.judge.references import Leaves
from pytest_pallas.judge.tolerance import Comparison, Noise
from pytest_pallas.record import Note
from pytest_pallas.replay.goldens import Golden, GoldenCall, Output, Store, origin_of, question_of
from pytest_pallas.replay.values import Array, Written, digest, dump, write

type Mode = Literal["record", "update", "replay"]

#: Number of elements that are kept of an array that is too large.
SAMPLE = 4096


@dataclass(kw_only=True)
class Goldens:
    """The goldens of a session.

    Attributes:
      store: the folder.
      mode: ``record`` keeps outputs, ``update`` also replaces those that differ, and ``replay``
        compares.
      most: limit on the bytes that are kept of one call, and of one output; of larger ones, a
        sample of each output is kept.
      ci: whether ``record`` may not replace goldens.
    """

    store: Store
    mode: Mode
    most: int
    ci: bool = False

    def ready(self) -> None:
        """Check before any test runs that goldens can be written or read.

        Raises:
          OptionError: safetensors is not installed, or there is no folder to replay from.
        """
        dump({})
        if self.mode == "replay" and not self.store.folder.is_dir():
            raise OptionError(
                f"--pallas-golden=replay: there is no folder {self.store.folder}; record goldens "
                "first (--pallas-golden=record), or give their folder with --pallas-golden-dir"
            )

    @functools.cached_property
    def index(self) -> Mapping[str, Sequence[Golden]]:
        """All goldens by their question."""
        index: dict[str, list[Golden]] = {}
        for golden in self.store.goldens():
            index.setdefault(golden.question, []).append(golden)
        return index

    def of(self, kernel: str, check: str, mesh: Mapping[str, int]) -> list[Golden]:
        """Return all goldens of a check of a kernel, one for each call."""
        return [
            goldens[0]
            for goldens in self.index.values()
            if (goldens[0].kernel, goldens[0].check) == (kernel, check)
            and dict(goldens[0].mesh) == dict(mesh)
        ]


@dataclass(frozen=True, kw_only=True)
class GoldenRequest:
    """The test that goldens belong to.

    Attributes:
      goldens: of the session.
      test: node id.
      mesh: axis name to size.
      seed: of the draws.
      examples: number of examples of a check.
    """

    goldens: Goldens
    test: str
    mesh: Mapping[str, int] = field(default_factory=dict[str, int])
    seed: int = 0
    examples: int = 0


def keeping(check: Check, kernel: str, request: GoldenRequest) -> Check:
    """Extend a check: it keeps its right outputs as goldens, or compares them.

    It replaces the check if ``--pallas-golden`` is given. In addition to the check's errors, it
    raises:

    Raises:
      GoldenError: there is a different golden of the same call, or a damaged one.
    """

    def run(context: CheckContext) -> CheckResult:
        result = check.run(context)
        if result.answer is None or result.failed is not None:
            return result
        if request.goldens.mode == "replay":
            written = written_call(context.arguments)
            question = question_of(kernel, check.name, request.mesh, written.digest)
            goldens = request.goldens.index.get(question, ())
            return _compared(goldens, request.goldens.store, context, result, result.answer)
        golden, arrays = _golden_of(request, check.name, kernel, context, result.answer)
        return _recorded(golden, arrays, request.goldens, result)

    return dataclasses.replace(check, run=run)


def written_call(arguments: Arguments) -> Written:
    """Write a call in the form that identifies it."""
    return write((arguments.args, dict(arguments.options), dict(arguments.tuning)))


def _golden_of(
    request: GoldenRequest, check: str, kernel: str, context: CheckContext, answer: ComparedOutputs
) -> tuple[Golden, dict[str, Array]]:
    """Make the golden of a call, and the arrays to keep."""
    drawn = "; ".join(f"{fact.name} {fact.text}" for fact in drawn_facts(context.arguments))
    written, most = written_call(context.arguments), request.goldens.most
    kept = _size(written.arrays) <= most
    outputs, arrays = _outputs(answer.outputs, most)
    if kept:
        arrays |= {f"in{number}": array for number, array in enumerate(written.arrays)}
    golden = Golden(
        test=request.test,
        kernel=kernel,
        check=check,
        mesh=dict(request.mesh),
        origin=origin_of(context.backend, context.kernel),
        call=GoldenCall(
            digest=written.digest,
            plain=written.plain,
            kinds=tuple((a.dtype.name, a.shape) for a in written.arrays) if kept else (),
            complete=kept and not written.opaque,
            seed=request.seed,
            examples=request.examples,
            drawn=drawn,
        ),
        outputs=outputs,
        products=answer.expected.products,
    )
    return golden, arrays


def _recorded(
    golden: Golden, arrays: Mapping[str, Array], goldens: Goldens, result: CheckResult
) -> CheckResult:
    """Keep a golden, unless there is an equal one."""
    before = goldens.store.get(golden.name)
    if before is not None and (before.outputs, before.origin) == (golden.outputs, golden.origin):
        return _counted(result, unchanged=1)
    if before is not None and goldens.mode == "record" and goldens.ci:
        raise GoldenError(
            f"there is a different golden of {golden}, from {before.origin}; with CI=true, "
            "--pallas-golden=record replaces nothing: use --pallas-golden=update if the new output "
            "is right"
        )
    goldens.store.put(golden, arrays)
    result = _counted(result, **{"recorded" if before is None else "replaced": 1})
    if any(output.sample for output in golden.outputs):
        result = dataclasses.replace(result, notes=(*result.notes, _SAMPLED))
    return result


_SAMPLED = Note(f"golden: of large outputs, {SAMPLE} elements and a checksum are kept", "result")


def _compared(
    goldens: Sequence[Golden],
    store: Store,
    context: CheckContext,
    result: CheckResult,
    answer: ComparedOutputs,
) -> CheckResult:
    """Compare an answer with the goldens of its call, up to the first that differs."""
    if not goldens:
        return _counted(result, missing=1)
    here = origin_of(context.backend, context.kernel)
    for golden in goldens:
        comparisons = _against(golden, store, here, context, answer)
        if any(not comparison.passed for comparison in comparisons):
            subject = f"against the golden of {golden.origin}"
            result = dataclasses.replace(result, comparisons=comparisons, subject=subject)
            return _counted(result, different=1)
        result = dataclasses.replace(
            _counted(result, compared=1),
            comparisons=(*result.comparisons, *comparisons),
            used_goldens=(*result.used_goldens, golden.name),
        )
    return result


def _against(
    golden: Golden, store: Store, here: Any, context: CheckContext, answer: ComparedOutputs
) -> Sequence[Comparison]:
    """Compare today's output with a golden."""
    kept = store.outputs(golden)
    same = golden.origin == here and context.deterministic
    if same and all(
        digest(np.asarray(array)) == output.digest
        for (_, array), output in zip(answer.outputs, golden.outputs, strict=False)
    ):
        return ()
    samples = {output.path: output.sample for output in golden.outputs}
    mine = [(path, _sampled(array, samples.get(path, 0))) for path, array in answer.outputs]
    if same and list(samples) == [path for path, _ in mine]:
        return _bits(mine, kept, f"against the golden of {golden.origin}")
    expected = _sampled_expected(_expected_of_both(golden, answer), samples)
    theirs: Leaves = list(kept.items())
    return apart(context, "today", str(golden.origin), mine, theirs, expected)


def _expected_of_both(golden: Golden, answer: ComparedOutputs) -> Expected:
    """Return the expected values in the lower precision of both answers' products."""
    products, context = golden.products, answer.context
    if products is None or context.reference is None:
        return answer.expected
    theirs = context.cache.get(
        context.reference,
        context.arguments.args,
        context.arguments.options,
        nan_ok=context.nan_ok,
        products=products,
    )
    return coarser(answer.expected, theirs)


def _bits(mine: Leaves, kept: Mapping[str, Array], where: str) -> Sequence[Comparison]:
    """Compare outputs bit for bit with a golden whose checksum differs."""
    comparisons = [
        bitwise(array, kept[path], where=f"{path or 'output'} {where}") for path, array in mine
    ]
    if all(comparison.passed for comparison in comparisons):
        text = "the checksum differs: the difference is at elements that the golden does not keep"
        return [state("bitwise", f"output {where}", text)]
    return comparisons


def _outputs(
    leaves: Iterable[tuple[str, Any]], most: int
) -> tuple[tuple[Output, ...], dict[str, Array]]:
    leaves = [(path, np.asarray(leaf)) for path, leaf in leaves]
    large = _size([leaf for _, leaf in leaves]) > most
    outputs = tuple(
        Output(
            path=path,
            dtype=leaf.dtype.name,
            shape=leaf.shape,
            digest=digest(leaf),
            sample=SAMPLE if large and leaf.size > SAMPLE else 0,
        )
        for path, leaf in leaves
    )
    arrays = {
        f"out{number}": _sampled(leaf, output.sample)
        for number, ((_, leaf), output) in enumerate(zip(leaves, outputs, strict=True))
    }
    return outputs, arrays


def _sampled(array: Any, sample: int) -> Any:
    """Take ``sample`` evenly spaced elements, first and last included; 0 takes the whole array."""
    if not sample:
        return array
    flat = np.asarray(array).reshape(-1)
    return flat[np.linspace(0, flat.size - 1, sample).astype(np.int64)]


def _sampled_expected(expected: Expected, samples: Mapping[str, int]) -> Expected:
    """Take the expected values of the elements that a golden keeps."""
    if not any(samples.values()):
        return expected

    def noise(path: str) -> Noise | None:
        whole, sample = expected.noise(path), samples.get(path, 0)
        if whole is None or not sample:
            return whole

        return whole.combined(lambda draws: np.stack([_sampled(draw, sample) for draw in draws]))

    def sampled(leaves: Leaves) -> Leaves:
        return [(path, _sampled(leaf, samples.get(path, 0))) for path, leaf in leaves]

    return dataclasses.replace(
        expected, oracle=sampled(expected.oracle), baseline=sampled(expected.baseline), noise=noise
    )


def _counted(result: CheckResult, **counts: int) -> CheckResult:
    return dataclasses.replace(result, goldens={**(Counter(result.goldens) + Counter(counts))})


def _size(arrays: Iterable[Array]) -> int:
    return sum(array.nbytes for array in arrays)
