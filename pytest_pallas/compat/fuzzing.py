"""Private names of hypothesis.

Seen in hypothesis 6.131 to 6.170. It can go when hypothesis has public access to the settings, the
seed and the database key of a test. Probe: ``tests/unit/compat/test_hypothesis.py``.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, Protocol


def set_database_key(test: Any, key: str) -> None:
    """Name the entry of hypothesis' example database that a ``@given`` test uses.

    By default that is a digest of its source, which tests made in a loop share. Hypothesis' own
    pytest plugin sets the same attribute.
    """
    inner = test.hypothesis.inner_test
    inner._hypothesis_internal_add_digest = hashlib.sha384(key.encode()).digest()


def is_of_shrinking(key: bytes) -> bool:
    """Return whether a key of the example database is that of steps of shrinking.

    Hypothesis keeps the failing example under a digest, and what it was before it was simplified
    under the digest and one of these words.
    """
    return key.endswith((b".secondary", b".pareto"))


def hypothesis_profile() -> str:
    """Return the name of hypothesis' profile, without importing hypothesis for it.

    ``get_current_profile_name`` is public in hypothesis 6.170 and missing in 6.131.
    """
    if "hypothesis" not in sys.modules:
        return "default"
    settings: Any = sys.modules["hypothesis"].settings
    public = getattr(settings, "get_current_profile_name", None)
    return str(public() if public is not None else settings._current_profile)


def hypothesis_settings(test: Any) -> Any:
    """Return the settings of a ``@given`` test, or None if it has none of its own."""
    return getattr(test, "_hypothesis_internal_use_settings", None)


def set_hypothesis_settings(test: Any, settings: Any) -> None:
    """Replace the settings of a ``@given`` test: the decorator refuses a second one."""
    test._hypothesis_internal_use_settings = settings


def hypothesis_seed(test: Any) -> int | None:
    """Return the seed that ``@hypothesis.seed`` gave a test, or None."""
    return getattr(test, "_hypothesis_internal_use_seed", None)


def draws_from(test: Any, package: str) -> bool:
    """Return whether a ``@given`` test draws from a ``@composite`` strategy of a package.

    Also if it was mapped, filtered, or is part of a choice.
    """
    handle = getattr(test, "hypothesis", None)
    strategies = list(getattr(handle, "_given_kwargs", {}).values())
    seen: set[int] = set()
    while strategies:
        strategy = strategies.pop()
        if id(strategy) in seen:
            continue
        seen.add(id(strategy))
        module = getattr(getattr(strategy, "definition", None), "__module__", "")
        if module == package or module.startswith(f"{package}."):
            return True
        strategies += [getattr(strategy, name) for name in _INNER if hasattr(strategy, name)]
        for name in ("original_strategies", "element_strategies"):
            strategies += getattr(strategy, name, ())
    return False


def blob_of_draw() -> str:
    """Return the blob, for ``reproduce_failure``, of what the running ``@given`` test has drawn."""
    from hypothesis.control import current_build_context
    from hypothesis.core import encode_failure

    data: Any = current_build_context().data
    return encode_failure(data.choices).decode()


#: Where a strategy keeps the one that it maps, filters or stands for.
_INNER = ("mapped_strategy", "filtered_strategy", "wrapped_strategy")


def sampled_elements(strategy: Any) -> tuple[Any, ...] | None:
    """Return what a strategy draws if it is a plain choice between values, else None.

    That is ``sampled_from``, ``just``, ``none``, ``booleans``, and ``one_of`` these; not what was
    mapped or filtered.
    """
    from hypothesis import strategies as st

    parts = getattr(strategy, "original_strategies", None)
    if parts is not None:
        choices = [sampled_elements(part) for part in parts]
        if None in choices:
            return None
        return tuple(value for values in choices for value in values or ())
    booleans: Any = st.booleans()  # made lazily, as others are
    if isinstance(strategy, type(booleans)):
        strategy = strategy.wrapped_strategy
    if isinstance(strategy, type(booleans.wrapped_strategy)):
        return (False, True)
    if not hasattr(strategy, "_transformations") or strategy._transformations:
        return None
    return tuple(strategy.elements)


def integer_range(strategy: Any) -> tuple[int | None, int | None, Callable[[int], Any]] | None:
    """Return the bounds of ``st.integers``, and a function from an integer to what is drawn.

    The function is that of ``map``. None for other strategies.
    """
    from hypothesis import strategies as st

    strategy = getattr(strategy, "wrapped_strategy", strategy)
    integers: Any = st.integers()  # made lazily
    if isinstance(strategy, type(integers.wrapped_strategy)):
        return strategy.start, strategy.end, lambda number: number
    inner = integer_range(strategy.mapped_strategy) if hasattr(strategy, "pack") else None
    if inner is None:
        return None
    least, most, function = inner
    return least, most, lambda number: strategy.pack(function(number))


#: Hypothesis' cache of constants in a draw without those of modules.
_GLOBAL_CONSTANTS: list[Any] = []


@contextlib.contextmanager
def without_module_constants() -> Generator[None]:
    """Draw nothing that depends on the modules which happen to be imported.

    Hypothesis reads the constants of local modules, and draws those now and then in place of
    random numbers. So the draws of a seed are others in a process that has imported more. Seen in
    hypothesis 6.132 to 6.170; in 6.131 nothing of the kind is drawn.
    """
    from hypothesis.internal.conjecture import providers

    known: Any = providers
    name = "_get_local_constants"
    if not hasattr(known, name):
        yield
        return
    before = getattr(known, name), known.CONSTANTS_CACHE  # which holds both kinds of constants
    none = known.Constants()
    if not _GLOBAL_CONSTANTS:
        _GLOBAL_CONSTANTS.append(type(known.CONSTANTS_CACHE)(1024))
    setattr(known, name, lambda: none)
    [known.CONSTANTS_CACHE] = _GLOBAL_CONSTANTS
    try:
        yield
    finally:
        setattr(known, name, before[0])
        known.CONSTANTS_CACHE = before[1]


# Private names of hypothesis: what ``reject()`` and ``assume()`` raise.
#
# Seen in hypothesis 6.131 to 6.170. It can go when hypothesis documents the exception. Probe:
# ``tests/unit/compat/test_rejection.py``.


@contextmanager
def rejecting() -> Generator[None]:
    """Let ``assume()`` and ``reject()`` be called where hypothesis runs no test of its own.

    A spec's examples are drawn by hypothesis, and run afterwards.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*outside a property-based test")
        yield


def is_rejection(error: BaseException) -> bool:
    """Return whether hypothesis rejects the example that is running: nothing failed."""
    errors = sys.modules.get("hypothesis.errors")
    return errors is not None and isinstance(error, errors.UnsatisfiedAssumption)


# Private names of hypothesis: choices that are made by a plan while hypothesis generates.
#
# An alternative backend of hypothesis answers what a strategy draws. What it answers is recorded as
# any other choice, so hypothesis shrinks, saves and replays it without the plan. Seen in hypothesis
# 6.131 to 6.170. It can go when hypothesis documents how a backend is registered, and tells it how
# long a list is. Probe: ``tests/unit/compat/test_hypothesis.py``.

#: The name of the backend, for ``hypothesis.settings``, within ``planning``.
PLANNED = "pytest-pallas"

#: The position to answer next.
_ANSWER: ContextVar[int | None] = ContextVar("answer", default=None)


class Answers(Protocol):
    """Answers what strategies draw that do not know the plan; None to draw at random.

    Hypothesis draws in spans: of a strategy, or of an element of a collection.
    """

    def start(self, label: int, *, element: bool) -> None:
        """Start a span, whose label says which strategy draws, or of an element."""
        ...

    def end(self, *, discarded: bool) -> None:
        """End the innermost span; its draws are discarded if a filter rejects them."""
        ...

    def collect(
        self, kind: CollectionKind, least: int, most: float, width: int | None = None
    ) -> None:
        """Declare that a collection is drawn in the innermost span.

        Args:
          kind: how it is drawn.
          least: the least number of elements.
          most: the largest.
          width: the elements of a row, if it is an array.
        """
        ...

    def integer(self, low: int, high: int) -> int | None:
        """Answer an integer within bounds."""
        ...

    def drew(self, number: int) -> None:
        """Take note of an integer, an answer or a random one."""
        ...

    def boolean(self) -> bool | None:
        """Answer a boolean, or whether a collection has another element."""
        ...


#: Collections, by how hypothesis draws them: the elements in turn, as many as it decides or as many
#: as there are; different ones; elements at drawn positions; elements of a list; swaps.
CollectionKind = Literal["list", "dense", "unique", "sparse", "picks", "permutation"]

_ANSWERS: ContextVar[Answers | None] = ContextVar("answers", default=None)


@contextmanager
def planning() -> Generator[None]:
    """Let tests with ``settings(backend=PLANNED)`` draw what a plan answers, else at random.

    Outside, hypothesis knows no such backend: with one, it would print another ``settings``.
    """
    from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS

    provider = _provider()
    AVAILABLE_PROVIDERS[PLANNED] = f"{provider.__module__}.{provider.__qualname__}"
    try:
        with _collections():
            yield
    finally:
        del AVAILABLE_PROVIDERS[PLANNED]


@contextmanager
def answering(position: int) -> Generator[None]:
    """Answer the next draw, of integers by one, of a ``sampled_from`` by an element's position."""
    token = _ANSWER.set(position)
    try:
        yield
    finally:
        _ANSWER.reset(token)


@contextmanager
def answered_by(answers: Answers | None) -> Generator[None]:
    """Answer the draws inside this context; None to draw at random."""
    token = _ANSWERS.set(answers)
    try:
        yield
    finally:
        _ANSWERS.reset(token)


@contextmanager
def _collections() -> Generator[None]:
    """Let strategies of collections say how many elements they draw."""
    from hypothesis.strategies._internal import collections, core

    def sizes(strategy: Any) -> tuple[Any, ...]:
        return strategy.min_size, strategy.max_size

    def array(strategy: Any) -> tuple[Any, ...]:
        size = strategy.array_size
        return size, size, strategy.shape[-1] if strategy.shape else None

    known: list[tuple[Any, Callable[[Any], CollectionKind], Callable[[Any], tuple[Any, ...]]]]
    known = [
        (collections.ListStrategy, lambda _: "list", sizes),
        (collections.UniqueListStrategy, lambda _: "unique", sizes),
        (collections.UniqueSampledListStrategy, lambda _: "picks", sizes),
        (core.PermutationStrategy, lambda _: "permutation", lambda it: (len(it.values),) * 2),
    ]
    arrays: Any = sys.modules.get("hypothesis.extra.numpy")
    if arrays is not None:

        def kind_of_array(it: Any) -> CollectionKind:
            return "dense" if it.fill.is_empty else "sparse"

        known.append((arrays.ArrayStrategy, kind_of_array, array))
    originals = [(kind, kind.do_draw) for kind, _, _ in known]
    try:
        for kind, kind_of, size_of in known:
            kind.do_draw = _collecting(kind.do_draw, kind_of, size_of)
        yield
    finally:
        for kind, do_draw in originals:
            kind.do_draw = do_draw


def _collecting(
    do_draw: Callable[[Any, Any], Any],
    kind_of: Callable[[Any], CollectionKind],
    size_of: Callable[[Any], tuple[Any, ...]],
) -> Callable[[Any, Any], Any]:
    """Return the method of a strategy, which declares its collection first."""

    @functools.wraps(do_draw)
    def collecting(strategy: Any, data: Any) -> Any:
        answers = _ANSWERS.get()
        if answers is not None:
            answers.collect(kind_of(strategy), *size_of(strategy))
        return do_draw(strategy, data)

    return collecting


@functools.cache
def _provider() -> Any:
    from hypothesis.internal.conjecture.providers import HypothesisProvider
    from hypothesis.internal.conjecture.utils import ONE_FROM_MANY_LABEL

    class Planned(HypothesisProvider):
        """Answers integers and booleans by the plan, and draws the rest as hypothesis does."""

        def draw_integer(
            self, min_value: int | None = None, max_value: int | None = None, **more: Any
        ) -> int:
            """Return the answer, or a random integer."""
            answer, answers = _ANSWER.get(), _ANSWERS.get()
            if answer is not None:
                return answer
            if answers is not None and min_value is not None and max_value is not None:
                answer = answers.integer(min_value, max_value)
            if answer is None:
                with answered_by(None):  # of weighted integers, hypothesis draws another one first
                    answer = super().draw_integer(min_value, max_value, **more)
            if answers is not None:
                answers.drew(answer)
            return answer

        def draw_boolean(self, p: float = 0.5) -> bool:
            """Return the answer, or a random boolean."""
            answers = _ANSWERS.get()
            answer = answers.boolean() if answers is not None and 0 < p < 1 else None
            return super().draw_boolean(p) if answer is None else answer

        def span_start(self, label: int, /) -> None:
            """Start a span."""
            answers = _ANSWERS.get()
            if answers is not None:
                answers.start(label, element=label == ONE_FROM_MANY_LABEL)

        def span_end(self, discard: bool, /) -> None:
            """End a span."""
            answers = _ANSWERS.get()
            if answers is not None:
                answers.end(discarded=discard)

    Planned.__qualname__ = Planned.__name__
    globals()[Planned.__name__] = Planned  # where hypothesis imports it from
    return Planned
