"""``arrays``: the strategy for the inputs of a kernel; ``shaped``: a call by its shapes alone.

A draw takes dtypes, sizes (``draw.dims``), a class of values and a seed, and makes the arrays of
these choices (``build``). ``draw_several`` draws a few examples to inspect a strategy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import hypothesis
import numpy as np
import numpy.typing as npt
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.errors import FailedHealthCheck, Unsatisfiable
from hypothesis.strategies import DrawFn, SearchStrategy

from pytest_pallas import budget
from pytest_pallas.budget import max_bytes
from pytest_pallas.compat.fuzzing import without_module_constants
from pytest_pallas.draw.arguments import (
    Arguments,
    Declared,
    Drawn,
    VariantSource,
    as_arguments,
    declare_arrays,
    dtype_word,
    kth,
)
from pytest_pallas.draw.covering import choose
from pytest_pallas.draw.dims import (
    MAX_ELEMENTS,
    NOTHING_LEARNED,
    Budget,
    DimsPlan,
    Learned,
    current_learned,
    current_probe,
    draw_dims,
    plan_dims,
)
from pytest_pallas.draw.dtypes import as_dtype, floats
from pytest_pallas.draw.sizes import (
    ShapeSpec,
    SizeArguments,
    Sizes,
    Tiles,
    check_int,
    concrete,
    holds,
    parse,
)
from pytest_pallas.draw.steering import unsteered
from pytest_pallas.draw.values import USUAL, check_classes, generate
from pytest_pallas.errors import PallasError, SpecError, raised_line
from pytest_pallas.record import VALUES, Aspect

#: A dtype, or a strategy that draws one.
DTypes = npt.DTypeLike | SearchStrategy[Any]

#: Seeds are short, because people read them.
MAX_SEED = 2**16 - 1

_FLOATS = floats()
_SEEDS = st.integers(0, MAX_SEED)


@dataclass(frozen=True)
class _ArraysPlan:
    """The parts of ``arrays``.

    Attributes:
      shapes: of the arrays.
      sizes: returns a strategy for the sizes, given the bytes of an element of each array, or of
        all.
      dtypes: one strategy for all arrays, or one for each.
      classes: the classes of values.
      values: draws one of them.
      declared: returns the choices with what was learned of the kernel.
    """

    shapes: ShapeSpec
    sizes: Callable[[tuple[int, ...]], SearchStrategy[dict[str, int]]]
    dtypes: tuple[SearchStrategy[Any], ...]
    classes: tuple[str, ...]
    values: SearchStrategy[str]
    declared: Callable[[Learned], Declared]


def arrays(
    shapes: str | ShapeSpec,
    *,
    dtype: DTypes | Sequence[DTypes] = _FLOATS,
    around: Tiles | None = None,
    multiple_of: Tiles | None = None,
    dims: Mapping[str, Sizes] | None = None,
    values: str | Sequence[str] = USUAL,
    unequal: bool | Sequence[str] = (),
    max_bytes: int | None = None,
    max_dim: int | None = None,
    max_elements: int = MAX_ELEMENTS,
    min_dim: int = 1,
) -> SearchStrategy[Drawn]:
    """Return a strategy for a tuple of numpy arrays, with a recipe that has the drawn choices.

    Example::

        @given(args=arrays("m k, k n", dtype=floats("bfloat16"), around=128))
        def test_matmul(args):
            check(matmul(*args))

        arrays("b h q d, b g k d; h = g*r, q <= k", around={"q": 128, "k": 128}, max_bytes=2**20)
        arrays("b s, b", dtype=("float32", "int32"), around={"s": 128}, dims={"b": [1, 2, 4]})

    A failing example is printed as ``Drawn(m=129, k=1, n=257, dtype=bfloat16, values=normal,
    seed=3)``. It shrinks to the smallest dims, the first dtype, the class ``"integers"`` and
    seed 0.

    Args:
      shapes: names and sizes, such as ``"m k, k n"``; docs/strategies.md has the language. With a
        single array the tuple has a single element.
      dtype: a dtype or a strategy for one, which all arrays share; or one of either per array; or
        a strategy for one dtype per array, such as ``dtype_pairs()``. By default ``floats()``.
      around: see ``strategies.dims``, as for the next two.
      multiple_of: sizes that are one, two or three tiles.
      dims: explicit sizes by name.
      values: one or more classes of values; docs/strategies.md lists them. By default ``"normal"``,
        ``"integers"``, ``"ties"`` and ``"peaks"``. Classes with NaN and
        infinities (``"special"``) or subnormals (``"tiny"``) must be named: most kernels do not
        support them.
      unequal: see ``strategies.dims``.
      max_bytes: limit on the bytes of all arrays together, for all dtypes. ``--pallas-max-bytes``,
        64 MiB by default, is an upper limit.
      max_dim: see ``strategies.dims``, as for the last.
      max_elements: limit on the elements of one array.
      min_dim: the smallest size; 0 draws empty arrays, too.

    Raises:
      ShapeLanguageError: ``shapes`` cannot be understood.
      SpecError: an argument that cannot be used, by name.
      DrawTooLargeError: when drawing: ``--pallas-max-bytes`` is too small for the smallest arrays.
    """
    spec = shapes if isinstance(shapes, ShapeSpec) else parse(shapes)
    check_int("max_elements", max_elements, 1)
    if max_bytes is not None:
        check_int("max_bytes", max_bytes, 1)
    size_arguments = SizeArguments(
        around=around,
        multiple_of=multiple_of,
        dims=dims,
        unequal=unequal,
        max_dim=max_dim,
        min_dim=min_dim,
    )

    @lru_cache(maxsize=64)
    def plan_within(option: int | None, itemsizes: tuple[int, ...], learned: Learned) -> DimsPlan:
        limits = Budget(max_elements, max_bytes, itemsizes).within(option)
        return plan_dims(spec, limits, size_arguments, learned)

    @lru_cache(maxsize=64)
    def sizes_within(
        option: int, itemsizes: tuple[int, ...], learned: Learned
    ) -> SearchStrategy[dict[str, int]]:
        return draw_dims(plan_within(option, itemsizes, learned))

    def sizes(itemsizes: tuple[int, ...]) -> SearchStrategy[dict[str, int]]:
        return sizes_within(budget.max_bytes(), itemsizes, current_learned())

    @lru_cache(maxsize=4)
    def declared(learned: Learned) -> Declared:
        def plan(itemsizes: tuple[int, ...]) -> DimsPlan:
            return plan_within(budget.max_bytes(), itemsizes, learned)

        return declare_arrays(plan, strategies, classes)

    plan_within(None, (1,), NOTHING_LEARNED)  # checks the arguments now
    entries: tuple[Any, ...] = (dtype,)
    if isinstance(dtype, Sequence) and not isinstance(dtype, str):
        entries = tuple(dtype)
        _check_count(spec, entries)
    classes = check_classes(values)
    strategies = tuple(
        entry if isinstance(entry, SearchStrategy) else st.just(as_dtype(entry))
        for entry in entries
    )
    drawn_class = st.sampled_from(classes)
    return _arrays(_ArraysPlan(spec, sizes, strategies, classes, drawn_class, declared))


def build(
    shapes: ShapeSpec,
    sizes: Mapping[str, int],
    dtypes: Sequence[np.dtype[Any]],
    *,
    values: str,
    seed: int,
    kin: VariantSource | None = None,
) -> Drawn:
    """Return the arrays of one draw, from the drawn choices.

    Args:
      shapes: the shapes.
      sizes: the size of each of ``shapes.variables``.
      dtypes: one for all arrays, or one for each.
      values: a class of values.
      seed: from 0 to ``MAX_SEED``.
      kin: the source of its variants.
    """
    typed = zip(concrete(shapes, sizes), _per_array(shapes, dtypes), strict=True)
    items = [
        generate(values, shape, dtype, seed=seed, index=index)
        for index, (shape, dtype) in enumerate(typed)
    ]
    names = tuple(dtype.name for dtype in dtypes)
    recipe = {"dtype": names if names[1:] else "".join(names), "values": values, "seed": seed}
    return Drawn(items, {**sizes, **recipe}, kin)


def _per_array(shapes: ShapeSpec, dtypes: Sequence[Any]) -> Sequence[Any]:
    """Return a dtype for each array, of one for all or one for each."""
    return dtypes if len(dtypes) > 1 else [*dtypes] * len(shapes.arrays)


def _check_count(shapes: ShapeSpec, dtypes: Sequence[Any]) -> None:
    if len(dtypes) != len(shapes.arrays):
        raise SpecError(
            f"dtype: {len(dtypes)} dtypes for the {len(shapes.arrays)} arrays of {shapes.text!r}; "
            "give one for all, or one for each"
        )


@st.composite
def _arrays(draw: DrawFn, plan: _ArraysPlan) -> Drawn:
    drawn: list[Any] = [
        choose(draw, strategy, Aspect("dtype", str(number) if number else ""), dtype_word)
        for number, strategy in enumerate(plan.dtypes)
    ]
    if len(drawn) == 1 and isinstance(drawn[0], tuple):
        drawn = [*drawn[0]]
        _check_count(plan.shapes, drawn)
    dtypes = [as_dtype(dtype, "what dtype drew") for dtype in drawn]
    sizes = draw(plan.sizes(tuple(dtype.itemsize for dtype in dtypes)))
    with unsteered():
        values, seed = choose(draw, plan.values, VALUES, str), draw(_SEEDS)
    if current_probe() is not None:
        import jax

        shapes = zip(concrete(plan.shapes, sizes), _per_array(plan.shapes, dtypes), strict=True)
        abstract = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
        return Drawn(abstract, {**sizes, "dtype": "", "values": ""})

    def sibling(k: int) -> Drawn:
        other, number = kth(values, seed, k, classes=plan.classes, seeds=MAX_SEED + 1)
        return build(plan.shapes, sizes, dtypes, values=other, seed=number)

    made = build(plan.shapes, sizes, dtypes, values=values, seed=seed, kin=VariantSource(sibling))
    made.declared = plan.declared(replace(current_learned(), stretched=False))
    return made


_NONE: Mapping[str, Any] = MappingProxyType({})


def shaped(
    shapes: str,
    *,
    dtype: npt.DTypeLike | Sequence[npt.DTypeLike],
    dims: Mapping[str, int] = _NONE,
    options: Mapping[str, Any] = _NONE,
    tuning: Mapping[str, Any] = _NONE,
) -> Arguments:
    """Return a call with a ``jax.ShapeDtypeStruct`` for each array: enough for a compiler.

    Example::

        shaped("m k, k n", dtype="bfloat16", dims={"m": 1024, "k": 1024, "n": 512})

    Args:
      shapes: the shapes of the arrays, as for ``arrays``.
      dtype: the dtype of all arrays, or a list with one for each.
      dims: the size of every named dim; sizes that only constraints name may be left out.
      options: keyword arguments that change the answer.
      tuning: keyword arguments that must not change it.

    Raises:
      ShapeLanguageError: ``shapes`` cannot be understood.
      SpecError: a size is missing or breaks a constraint, or there are more or fewer dtypes than
        arrays.
    """
    import jax

    spec = parse(shapes)
    missing = [name for name in spec.names if name not in dims]
    if missing:
        raise SpecError(f"shaped({shapes!r}): no size for {', '.join(missing)}; give it in dims=")
    for constraint in spec.constraints:
        if all(name in dims for name in constraint.names) and not holds(constraint, dims):
            raise SpecError(f"shaped({shapes!r}): {dict(dims)} breaks {constraint.text!r}")
    dtypes = list(dtype) if isinstance(dtype, (list, tuple)) else [dtype] * len(spec.arrays)
    if len(dtypes) != len(spec.arrays):
        raise SpecError(
            f"shaped({shapes!r}): {len(dtypes)} dtypes for {len(spec.arrays)} arrays; give one "
            "for each, or one for all"
        )
    args = tuple(map(jax.ShapeDtypeStruct, concrete(spec, dims), map(as_dtype, dtypes)))
    return Arguments(args, dict(options), dict(tuning), recipe={**dims, "values": "none"})


def draw_once(strategy: Any) -> Arguments:
    """Return one example of a strategy, always the same."""
    return draw_several(strategy, 1)[0]


def draw_several(strategy: Any, most: int) -> Sequence[Arguments]:
    """Draw up to ``most`` examples, always the same; cached for the last strategies."""
    draw = _draw if current_probe() is not None else _kept
    return draw(strategy, most, max_bytes())


@contextmanager
def strategy_errors(strategy: Any = None) -> Generator[None]:
    """Say which line of a user raised while a strategy is made, or examples of it are drawn.

    Raises:
      SpecError: the strategy raises, has nothing to draw, or filters out almost all draws.
    """
    try:
        yield
    except (FailedHealthCheck, Unsatisfiable) as error:
        if strategy is not None and strategy.is_empty:
            raise SpecError(
                "the inputs strategy can draw nothing: it is st.nothing(), or a strategy made of it"
            ) from error
        raise SpecError(
            "the inputs strategy gives too few examples: it filters out almost all draws. Draw "
            "what is needed, by multiple_of=, dims= or constraints such as 'm n; m <= n', in place "
            "of .filter() and assume()"
        ) from error
    except PallasError:
        raise
    except Exception as error:
        line = raised_line(error)
        raise SpecError(
            f"the inputs strategy raised {type(error).__name__}: {error}"
            + (f"\n  raised at {line}" if line else "")
        ) from None


def _draw(strategy: Any, most: int, budget: int) -> Sequence[Arguments]:
    del budget  # strategies need it
    drawn: list[Any] = []

    @hypothesis.settings(
        max_examples=most,
        phases=[hypothesis.Phase.generate],
        database=None,
        deadline=None,
        derandomize=True,
        report_multiple_bugs=False,
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
        ],
    )
    @hypothesis.given(strategy)
    def draw(value: Any) -> None:
        drawn.append(value)

    with without_module_constants(), strategy_errors(strategy):
        draw()
    return [as_arguments(example) for example in drawn]


_kept = functools.lru_cache(maxsize=4)(_draw)
