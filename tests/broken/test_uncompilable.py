"""Every kernel of ``uncompilable`` is refused where it must be, and the message says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pallas_test_support.compile_service import compile_service, in_parallel
from uncompilable import CASES, GPUS, TPUS, Case

from pallas_sim.chips import TARGETS
from pytest_pallas import CompileError, CompilerFailedError
from pytest_pallas.backends.protocol import Call, Outcome
from pytest_pallas.backends.registry import compiling, parse
from pytest_pallas.compile import cuda, libtpu

type Started = Callable[[str, Case], Callable[[], Outcome]]

#: The platforms' chips, and what is missing to compile for them.
PLATFORMS = {"tpu": (TPUS, libtpu.missing()), "gpu": (GPUS, cuda.missing())}


def of(target: str) -> list[Case]:
    """The cases of a chip's platform."""
    return [each for each in CASES if each.platform == TARGETS[target].platform]


def questions() -> Iterator[object]:
    """Chips in turn, because a GPU compiler's process compiles for one chip only."""
    for targets, missing in PLATFORMS.values():
        skip = pytest.mark.skipif(missing is not None, reason=str(missing))
        for target in targets:
            for case in of(target):
                yield pytest.param(target, case, id=f"{target}-{case.name}", marks=skip)


@pytest.fixture(scope="module")
def started(request: pytest.FixtureRequest) -> Started:
    """A case of a chip, being compiled; with it, all others of the chip that are selected.

    Where several processes run tests, another one may run those others: there it is alone.
    """
    selected = {item.name for item in request.session.items}
    families = {family.name: family for family in compiling(compile_service)}
    running: dict[tuple[str, str], Callable[[], Outcome]] = {}

    def start(target: str, case: Case) -> Callable[[], Outcome]:
        if (target, case.name) not in running:
            [backend] = parse(f"{TARGETS[target].platform}-compile:{target}", families)
            for each in [case] if in_parallel() else of(target):
                if any(name.endswith(f"[{target}-{each.name}]") for name in selected):
                    call = Call(function=each.function, args=each.args)
                    running[target, each.name] = backend.start(call)
        return running[target, case.name]

    return start


# Of pltpu.sync_copy on the SparseCore, on itself.
@pytest.mark.filterwarnings("ignore:Destination semaphore is ignored")
@pytest.mark.parametrize(("target", "case"), [*questions()])
def test_it_is_refused_for_its_reason_on_its_chips_and_compiles_on_the_others(
    started: Started, target: str, case: Case
) -> None:
    outcome = started(target, case)()
    if target in case.silent:
        return
    if target not in case.refused:
        assert outcome.error is None, outcome.error
        return
    expected = CompilerFailedError if target in case.aborts else CompileError
    assert type(outcome.error) is expected
    text = str(outcome.error)
    assert target in text
    assert [words for words in case.words if words not in text] == [], text


def test_each_has_a_name_of_its_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
