"""``arrays``: the strategy for the inputs of a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from pytest_pallas.errors import SpecError
from pytest_pallas.strategies.arguments import Drawn
from pytest_pallas.strategies.dims import MAX_ELEMENTS
from pytest_pallas.strategies.dims import dims as draw_dims
from pytest_pallas.strategies.dtypes import as_dtype, floats
from pytest_pallas.strategies.pools import Sizes, Tiles
from pytest_pallas.strategies.shapes import ShapeSpec, concrete, parse
from pytest_pallas.strategies.values import check_classes, generate

#: A dtype, or a strategy that draws one.
DTypes = npt.DTypeLike | SearchStrategy[Any]

#: Seeds are short, because people read them.
MAX_SEED = 2**16 - 1

_FLOATS = floats()
_SEEDS = st.integers(0, MAX_SEED)


@dataclass(frozen=True)
class _Plan:
    """What ``arrays`` draws from. ``dtypes`` has one strategy for all arrays, or one for each."""

    shapes: ShapeSpec
    sizes: SearchStrategy[dict[str, int]]
    dtypes: tuple[SearchStrategy[Any], ...]
    values: SearchStrategy[str]


def arrays(
    shapes: str | ShapeSpec,
    *,
    dtype: DTypes | Sequence[DTypes] = _FLOATS,
    around: Tiles | None = None,
    multiple_of: Tiles | None = None,
    dims: Mapping[str, Sizes] | None = None,
    values: str | Sequence[str] = ("normal", "integers"),
    max_dim: int | None = None,
    max_elements: int = MAX_ELEMENTS,
    min_dim: int = 1,
) -> SearchStrategy[Drawn]:
    """A strategy for a tuple of numpy arrays, with a recipe that says how they were drawn.

    Example::

        @given(args=arrays("m k, k n", dtype=floats("bfloat16"), around=128))
        def test_matmul(args):
            check(matmul(*args))

        arrays("b s, b", dtype=("float32", "int32"), around={"s": 128}, dims={"b": [1, 2, 4]})

    A failing example is printed as ``Drawn(m=129, k=1, n=257, dtype=bfloat16, values=normal,
    seed=3)``. It shrinks to the smallest dims, the first dtype, the class ``"integers"`` and
    seed 0.

    Args:
      shapes: see ``strategies.shapes``. With a single array the tuple has a single element.
      dtype: a dtype or a strategy for one, which all arrays share; or one of either per array.
        By default ``floats()``.
      around: see ``strategies.dims``, as for the next two.
      multiple_of: sizes that are one, two or three tiles.
      dims: explicit sizes by name.
      values: one or more classes of values (see ``strategies.values``). ``"special"``, with NaN
        and infinities, has to be asked for: most kernels promise nothing about them.
      max_dim: see ``strategies.dims``, as for the last two.
      max_elements: the most elements of one array.
      min_dim: the smallest size; 0 asks for empty arrays as well.

    Raises:
      ShapeLanguageError: ``shapes`` cannot be understood.
      SpecError: an argument that cannot be used, by name.
    """
    spec = shapes if isinstance(shapes, ShapeSpec) else parse(shapes)
    sizes = draw_dims(
        spec,
        around=around,
        multiple_of=multiple_of,
        dims=dims,
        max_dim=max_dim,
        max_elements=max_elements,
        min_dim=min_dim,
    )
    shared = isinstance(dtype, str) or not isinstance(dtype, Sequence)
    given: Any = dtype
    entries: tuple[Any, ...] = (given,) if shared else tuple(given)
    if not shared and len(entries) != len(spec.arrays):
        raise SpecError(
            f"dtype: {len(entries)} dtypes for the {len(spec.arrays)} arrays of {spec.text!r}; "
            "give one for all, or one for each"
        )
    return _arrays(
        _Plan(
            spec,
            sizes,
            tuple(_dtype_strategy(entry) for entry in entries),
            st.sampled_from(check_classes(values)),
        )
    )


def build(
    shapes: ShapeSpec,
    sizes: Mapping[str, int],
    dtypes: Sequence[np.dtype[Any]],
    *,
    values: str,
    seed: int,
) -> Drawn:
    """The arrays of one draw, made again from what was drawn.

    Args:
      shapes: the shapes.
      sizes: the size of each of ``shapes.names``.
      dtypes: one for all arrays, or one for each.
      values: a class of values.
      seed: from 0 to ``MAX_SEED``.
    """
    per_array = dtypes if len(dtypes) > 1 else [*dtypes] * len(shapes.arrays)
    items = [
        generate(values, shape, dtype, seed=seed, index=index)
        for index, (shape, dtype) in enumerate(zip(concrete(shapes, sizes), per_array, strict=True))
    ]
    names = tuple(dtype.name for dtype in dtypes)
    recipe = {"dtype": names if names[1:] else "".join(names), "values": values, "seed": seed}
    return Drawn(items, {**sizes, **recipe})


@st.composite
def _arrays(draw: DrawFn, plan: _Plan) -> Drawn:
    sizes = draw(plan.sizes)
    dtypes = [as_dtype(draw(strategy), "what dtype drew") for strategy in plan.dtypes]
    return build(plan.shapes, sizes, dtypes, values=draw(plan.values), seed=draw(_SEEDS))


def _dtype_strategy(entry: Any) -> SearchStrategy[Any]:
    return entry if isinstance(entry, SearchStrategy) else st.just(as_dtype(entry))
