"""``Arguments``: one drawn call of a kernel, what it could have been, and its variants.

``arguments`` draws whole calls. A draw has a ``recipe``, the choices in words for messages;
``Declared``, all choices that there were, so that those never drawn can be reported; and a
``VariantSource``, which gives other values of the same shapes.
"""

from __future__ import annotations

import dataclasses
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from pytest_pallas.budget import check_bytes, limited, max_bytes
from pytest_pallas.draw.covering import MOST, alternatives, choose, choose_together
from pytest_pallas.draw.dims import DimsPlan, boundaries, impossible_pairs
from pytest_pallas.draw.dtypes import as_dtype
from pytest_pallas.draw.meshes import MeshAxes, labels_of
from pytest_pallas.draw.sizes import exceeding
from pytest_pallas.draw.steering import unsteered
from pytest_pallas.errors import DrawTooLargeError, SpecError
from pytest_pallas.record import DTYPE, VALUES, Aspect

#: Number of redraws, each with half as many bytes, until a whole call fits.
_HALVINGS = 6

#: Limit on the elements of an array that is shown whole.
_SHORT = 16

_EMPTY: Mapping[str, Any] = MappingProxyType({})

#: Keyword arguments: strategies or constants by name, or a function from the draw to those.
Keywords = Mapping[str, Any] | Callable[[Any], Mapping[str, Any]]


class Drawn(tuple[Any, ...]):
    """A tuple of drawn arrays that remembers its recipe.

    Other code sees a plain tuple, so ``fn(*drawn)`` works. ``recipe`` maps words such as ``"m"`` (a
    dim), ``"dtype"``, ``"values"`` and ``"seed"`` to the drawn choices, for messages. ``declared``
    are the possible choices, or None; code that makes a tuple from a drawn one must pass it on, so
    that undrawn choices can be reported.
    """

    recipe: Mapping[str, Any]
    kin: VariantSource | None
    declared: Declared | None

    def __new__(
        cls,
        items: Iterable[Any],
        recipe: Mapping[str, Any] = _EMPTY,
        kin: VariantSource | None = None,
        *,
        declared: Declared | None = None,
    ) -> Drawn:
        """Build the tuple from ``items`` and keep ``recipe`` and ``declared`` beside it."""
        self = super().__new__(cls, items)
        self.recipe = MappingProxyType(dict(recipe))
        self.kin = kin
        self.declared = declared
        return self

    def with_values(self, values: Drawn) -> Drawn:
        """Replace the draw, which declares the same; see ``variants``."""
        values.declared = self.declared
        return values

    def __iter__(self) -> Iterator[Any]:
        if self.kin is not None:
            self.kin.look()
        return super().__iter__()

    def __getitem__(self, index: Any) -> Any:
        if self.kin is not None:
            self.kin.look()
        return super().__getitem__(index)

    def __repr__(self) -> str:
        return f"Drawn({_recipe_text(self.recipe) or _items_text(self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping proxy cannot be pickled.
        return Drawn, (tuple(self), dict(self.recipe)), {"declared": self.declared}


# Comparing arrays gives arrays, so there is no useful equality of fields.
@dataclass(frozen=True, repr=False, eq=False)
class Arguments:
    """One call: ``kernel(*args, **options, **tuning)`` for ``reference(*args, **options)``.

    Attributes:
      args: positional arguments, numpy arrays or pytrees of them.
      options: keyword arguments that change the answer (``causal=True``); given to both.
      tuning: keyword arguments that must not change it (block sizes); given to the kernel only.
      recipe: the drawn choices, for messages.
      kin: the source of its variants.
      declared: the possible choices, as far as they are known.
      mesh: the drawn sizes of the mesh that the call is for, by axis; empty if none was drawn.
    """

    args: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tuning: Mapping[str, Any] = field(default_factory=dict[str, Any])
    recipe: Mapping[str, Any] = field(default_factory=dict[str, Any])
    kin: VariantSource | None = None
    declared: Declared | None = None
    mesh: Mapping[str, int] = field(default_factory=dict[str, int])

    def with_values(self, values: Drawn) -> Arguments:
        """Replace the first arrays of the call; see ``variants``."""
        rest = _unseen(self)[len(values) :]
        return Arguments(
            (*values, *rest),
            self.options,
            self.tuning,
            {**self.recipe, **values.recipe},
            declared=self.declared,
            mesh=self.mesh,
        )

    def __repr__(self) -> str:
        parts = [_recipe_text(self.recipe) or _items_text(self.args)]
        named = (("options", self.options), ("tuning", self.tuning), ("mesh", self.mesh))
        for name, keywords in named:
            if keywords:
                text = ", ".join(f"{k}={_keyword_text(value)}" for k, value in keywords.items())
                parts.append(f"{name}=({text})")
        return f"Arguments({', '.join(part for part in parts if part)})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # Hypothesis would print all fields of a dataclass, with elements


class _OpenArguments(Arguments):
    """A call that is being drawn: it records whether a strategy reads its arrays."""

    def __getattribute__(self, name: str) -> Any:
        if name == "args" and (kin := self.kin) is not None:
            kin.look()
        return object.__getattribute__(self, name)


def _arguments_of(args: tuple[Any, ...], kin: VariantSource | None, **fields: Any) -> Arguments:
    """A call with a source of variants, which is open until the draw is complete."""
    kind = Arguments if kin is None or kin.drawn else _OpenArguments
    return kind(args, kin=kin, **fields)


def arguments(
    arrays: SearchStrategy[Any],
    *,
    then: Keywords = _EMPTY,
    options: Keywords = _EMPTY,
    tuning: Keywords = _EMPTY,
) -> SearchStrategy[Arguments]:
    """Return a strategy for whole calls: arrays and keyword arguments.

    Example::

        arguments(
            arrays("q d, k d, k d", around={"q": 128, "k": 128}, dims={"d": [64, 128]}),
            options={"causal": st.booleans(), "scale": 0.125},
            tuning=lambda drawn: {"block_q": st.sampled_from([64, 128])},
        )
        arguments(
            arrays("b k d"),
            then=lambda drawn: {
                "lengths": lengths(drawn.recipe["b"], max_length=drawn.recipe["k"])
            },
        )

    Args:
      arrays: draws the positional arguments: ``strategies.arrays(...)``, or any strategy for a
        tuple.
      then: positional arguments after the arrays, in order: strategies or constants by a name for
        messages, or a function from the draw of ``arrays`` to such a mapping.
      options: keyword arguments of kernel and reference. A mapping to strategies or constants, or a
        function from the draw of ``arrays`` to such a mapping.
      tuning: likewise, for the kernel only.

    Raises:
      SpecError: one of the arguments cannot be used, or ``options`` and ``tuning`` share a name.
      DrawTooLargeError: when drawing: the arrays of a call exceed ``--pallas-max-bytes``, however
        small those of ``arrays`` are.
    """
    if not isinstance(arrays, SearchStrategy):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpecError(
            f"arrays must be a strategy such as strategies.arrays(...), not {arrays!r:.80}"
        )
    for argument, value in (("then", then), ("options", options), ("tuning", tuning)):
        if not callable(value):
            _check_keywords(argument, value)
    if not callable(options) and not callable(tuning):
        _check_disjoint(options, tuning)
    return _arguments(arrays, then, options, tuning)


def on_meshes(
    axes: MeshAxes, meshes: Sequence[tuple[Mapping[str, int], SearchStrategy[Any]]]
) -> SearchStrategy[Arguments]:
    """Return a strategy for calls on drawn meshes; it shrinks to the first of them.

    Args:
      axes: of the meshes.
      meshes: the sizes of each mesh, and the strategy of the calls there.
    """
    labels = labels_of(axes, [sizes for sizes, _ in meshes])
    choices = {
        Aspect("mesh", name): tuple(dict.fromkeys(sizes.values())) for name, sizes in labels.items()
    }
    together = [
        {Aspect("mesh", name): labels[name][size] for name, size in sizes.items()}
        for sizes, _ in meshes
    ]
    kept: dict[Declared, Declared] = {}

    @st.composite
    def call(draw: DrawFn) -> Arguments:
        sizes, strategy = meshes[choose_together(draw, together)]
        drawn = as_arguments(draw(strategy))
        declared = drawn.declared or NOTHING
        if declared not in kept:
            kept[declared] = dataclasses.replace(
                declared, choices={**choices, **declared.choices}, devices=labels
            )
        fields: dict[str, Any] = vars(drawn) | {"declared": kept[declared], "mesh": sizes}
        return _arguments_of(fields.pop("args"), fields.pop("kin"), **fields)

    return call()


def as_arguments(drawn: object) -> Arguments:
    """Convert the draw of a strategy to ``Arguments``.

    Raises:
      SpecError: ``drawn`` is neither ``Arguments`` nor a tuple of positional arguments.
    """
    if isinstance(drawn, _OpenArguments) and drawn.kin is not None and drawn.kin.drawn:
        return Arguments(**vars(drawn))
    if isinstance(drawn, Arguments):
        return drawn
    if isinstance(drawn, Drawn):
        fields = {"recipe": dict(drawn.recipe), "declared": drawn.declared}
        return _arguments_of(_unseen(drawn), drawn.kin, **fields)
    if isinstance(drawn, tuple):
        return Arguments(tuple(drawn))  # pyright: ignore[reportUnknownArgumentType]
    raise SpecError(
        f"the inputs strategy drew a {type(drawn).__name__}; it must draw a tuple of positional "
        "arguments, or strategies.Arguments (see strategies.arrays and strategies.arguments)"
    )


@st.composite
def _arguments(
    draw: DrawFn,
    arrays: SearchStrategy[Any],
    then: Keywords,
    options: Keywords,
    tuning: Keywords,
) -> Arguments:
    most = max_bytes()
    too_large: DrawTooLargeError | None = None
    for halvings in range(_HALVINGS + 1):
        # The other arguments must fit, too, and depend on the drawn arrays.
        try:
            with limited(most >> halvings):
                drawn = draw(arrays)
        except DrawTooLargeError as error:
            raise too_large or error from None  # the first knows the whole call
        try:
            call = _call(draw, drawn, then, options, tuning)
            check_bytes("a call", sum(map(bytes_in, (_unseen(call), call.options, call.tuning))))
        except DrawTooLargeError as error:
            too_large = error
        else:
            return call
    assert too_large is not None
    raise too_large


_ROLES = {"then": "list", "options": "option", "tuning": "tuning"}


def _call(
    draw: DrawFn, drawn: Any, then: Keywords, options: Keywords, tuning: Keywords
) -> Arguments:
    """Return the call with drawn arrays and the arguments that depend on them."""
    base = as_arguments(drawn)
    values: dict[str, dict[str, Any]] = {}
    entries: dict[str, Mapping[str, Any]] = {}
    for argument, value in (("then", then), ("options", options), ("tuning", tuning)):
        keywords = _check_keywords(argument, value(drawn)) if callable(value) else value
        entries[argument] = keywords
        values[argument] = {
            name: (
                choose(draw, entry, Aspect(_ROLES[argument], name), keyword_word)
                if isinstance(entry, SearchStrategy)
                else entry
            )
            for name, entry in keywords.items()
        }
    fields = {name: {**getattr(base, name), **values[name]} for name in ("options", "tuning")}
    _check_disjoint(**fields)
    recipe = dict(base.recipe)
    for name, value in values["then"].items():
        if name in recipe:
            raise SpecError(f"then: the recipe has a {name!r} already; rename the argument")
        recipe[name] = _keyword_text(value)
    args = (*_unseen(base), *values["then"].values())
    declared = declare_keywords(base.declared or NOTHING, entries["options"], entries["tuning"])
    return _arguments_of(args, base.kin, **fields, recipe=recipe, declared=declared)


def _unseen(drawn: Drawn | Arguments) -> tuple[Any, ...]:
    """Return the positional arguments, without recording a read of their values."""
    if isinstance(drawn, Arguments):
        return drawn.__dict__["args"]
    return tuple.__getitem__(drawn, slice(None))


def _check_keywords(argument: str, value: object) -> Mapping[str, Any]:
    """Check that ``value`` is a mapping from keyword to anything, and return it."""
    if not isinstance(value, Mapping):
        raise SpecError(
            f"{argument} must be a mapping from keyword to strategy or constant, or a function "
            f"that returns one, not {value!r:.80}"
        )
    for name in value:
        if not isinstance(name, str) or not name.isidentifier():
            raise SpecError(f"{argument}: {name!r} cannot be the name of a keyword argument")
    return value


def _check_disjoint(options: Mapping[str, Any], tuning: Mapping[str, Any]) -> None:
    both = sorted(set(options) & set(tuning))
    if both:
        raise SpecError(
            f"options and tuning both have {', '.join(both)}; an option changes the answer and is "
            "given to the reference too, tuning must not change it: put each in one of them"
        )


def _recipe_text(recipe: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_word(value)}" for name, value in recipe.items())


def _word(value: object) -> str:
    """Return a recipe's value; names of dtypes and classes read better without quotes."""
    if isinstance(value, tuple):
        return f"({', '.join(_word(item) for item in value)})"  # pyright: ignore[reportUnknownVariableType]
    return str(value)


def _items_text(items: Iterable[Any]) -> str:
    return ", ".join(_item_text(item) for item in items)


def _item_text(item: Any) -> str:
    """Return the type of an argument: ``float32[3, 4]``; for pytrees, the name of their type."""
    if hasattr(item, "shape") and hasattr(item, "dtype"):
        return f"{item.dtype}[{', '.join(str(size) for size in item.shape)}]"
    if isinstance(item, bool | int | float | str | None):
        return repr(item)
    return type(item).__name__


def _keyword_text(value: Any) -> str:
    if isinstance(value, np.ndarray):
        if value.size <= _SHORT and value.dtype.kind in "biu":
            return str(value.tolist()).replace(" ", "")
        number = zlib.crc32(np.ascontiguousarray(value).tobytes())  # which identifies it
        return f"{_item_text(value)}#{number:08x}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _item_text(value)
    name = getattr(value, "__qualname__", "<")
    if callable(value) and "<" not in name:
        return f"{value.__module__}.{name}"  # its repr has an address
    text = repr(value)
    if len(text) <= 60:
        return text
    return f"{text[:48]}...#{zlib.crc32(text.encode()):08x}"  # which identifies it


# What a strategy may draw, known in advance, so that undrawn choices can be reported. Each draw has
# a word for each aspect: its dtypes, its classes of values, each dim, each option, each tuning
# parameter. The word of a dim is a kind of boundary, such as ``"tile+1"``, because kernels fail at
# kinds of sizes, not at numbers. Only choices between a few values are declared: the choices of
# other strategies than a plain ``sampled_from`` or ``booleans`` are not known.


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


# compared by identity: all draws of a strategy share one
@dataclass(frozen=True, eq=False)
class Declared:
    """The choices of a strategy.

    Attributes:
      choices: for each aspect the possible words, the simplest first.
      kinds: for each dim with a pool the kind of boundary of each size.
      tiles: for each dim with sizes around tiles, the tiles.
      impossible: pairs of choices that constraints or the budget forbid.
      keyword_kinds: for each option or tuning parameter the kinds of its values; see
        ``keyword_kind``.
      devices: for each axis of a drawn mesh the word of each size.
      unlimited: the dims for which the user allows larger sizes than these.
    """

    choices: Mapping[Aspect, tuple[str, ...]] = field(default_factory=dict[Aspect, tuple[str, ...]])
    kinds: Mapping[str, Mapping[int, str]] = field(default_factory=dict[str, Mapping[int, str]])
    tiles: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    impossible: frozenset[frozenset[tuple[Aspect, str]]] = frozenset()
    keyword_kinds: Mapping[Aspect, frozenset[str]] = field(
        default_factory=dict[Aspect, frozenset[str]]
    )
    devices: Mapping[str, Mapping[int, str]] = field(default_factory=dict[str, Mapping[int, str]])
    unlimited: frozenset[str] = frozenset()


NOTHING = Declared()


def declare_arrays(
    plan: Callable[[tuple[int, ...]], DimsPlan], dtypes: Iterable[Any], classes: Iterable[str]
) -> Declared:
    """Return the choices of ``arrays``.

    Args:
      plan: returns the plan of the dims, given the bytes of an element of each array, or of all.
      dtypes: the strategies for dtypes, one for all arrays or one for each.
      classes: the classes of values.
    """
    by_aspect = {VALUES: tuple(classes)}
    elements = [alternatives(strategy) for strategy in dtypes]
    itemsizes = {(1,)}
    if all(elements) and prod(map(len, elements)) <= MOST:
        # A single strategy may draw the dtypes of all arrays together, as a tuple.
        rows = [row[0] if isinstance(row[0], tuple) else row for row in product(*elements)]
        joint = [tuple(as_dtype(dtype) for dtype in row) for row in rows]
        names = [tuple(dtype.name for dtype in row) for row in joint]
        by_aspect[DTYPE] = tuple(dict.fromkeys(map(dtype_word, names)))
        itemsizes = {tuple(dtype.itemsize for dtype in row) for row in joint}
    kinds: dict[str, dict[int, str]] = {}
    tiles: dict[str, tuple[int, ...]] = {}
    forbidden: list[frozenset[frozenset[tuple[str, str]]]] = []
    unlimited = set[str]()
    for sizes in sorted(itemsizes):  # from the smallest, which allow the largest dims
        made = plan(sizes)
        tiles.update((name, pool.tiles) for name, pool in made.pools.items() if pool.tiles)
        forbidden.append(impossible_pairs(made))
        unlimited.update(
            name for name, pool in made.pools.items() if pool.high is None and not pool.listed
        )
        for name, kind_of in boundaries(made).items():
            kinds.setdefault(name, {}).update(kind_of)
    for name, kind_of in kinds.items():
        by_aspect[Aspect("dim", name)] = tuple(dict.fromkeys(kind_of.values()))
    impossible = frozenset(
        frozenset((Aspect("dim", name), kind) for name, kind in pair)
        for pair in frozenset.intersection(*forbidden)
    )
    return Declared(by_aspect, kinds, tiles, impossible, unlimited=frozenset(unlimited))


def declare_keywords(
    declared: Declared, options: Mapping[str, Any], tuning: Mapping[str, Any]
) -> Declared:
    """Add the choices of keyword arguments, which are strategies or constants, to ``declared``."""
    by_aspect = dict(declared.choices)
    kinds = dict(declared.keyword_kinds)
    for role, keywords in (("option", options), ("tuning", tuning)):
        for name, entry in keywords.items():
            if values := alternatives(entry):
                aspect = Aspect(role, name)
                by_aspect[aspect] = tuple(dict.fromkeys(map(keyword_word, values)))
                kinds[aspect] = frozenset(map(keyword_kind, values))
    return dataclasses.replace(declared, choices=by_aspect, keyword_kinds=kinds)


def aspects(drawn: Arguments | Drawn) -> Iterator[tuple[Aspect, str]]:
    """Yield the aspects of a draw, each with its word."""
    declared = drawn.declared or NOTHING
    for aspect, word in ((DTYPE, dtype_word), (VALUES, str)):
        if aspect.role in drawn.recipe:
            yield aspect, word(drawn.recipe[aspect.role])
    for name, kind_of in declared.kinds.items():
        if name in drawn.recipe:
            yield Aspect("dim", name), kind_of.get(drawn.recipe[name], "other")
    for role, keywords in (("option", "options"), ("tuning", "tuning")):
        for name, value in getattr(drawn, keywords, {}).items():
            aspect = Aspect(role, name)
            if aspect in declared.choices:
                yield aspect, keyword_word(value)
    yield from mesh_aspects(drawn)


def mesh_aspects(drawn: object) -> Iterator[tuple[Aspect, str]]:
    """Yield the axes of the drawn mesh of a call, each with the word of its size."""
    if isinstance(drawn, Arguments) and drawn.mesh:
        for name, labels in (drawn.declared or NOTHING).devices.items():
            yield Aspect("mesh", name), labels[drawn.mesh[name]]


def exceeds_declared(drawn: object) -> bool:
    """Return whether an axis is longer than its strategy says that the kernel must take."""
    declared = getattr(drawn, "declared", None) or NOTHING
    recipe: Mapping[str, Any] = getattr(drawn, "recipe", {})
    return any(
        recipe.get(name, 0) > max(declared.kinds.get(name, ()), default=0)
        for name in declared.unlimited
    )


def extents(drawn: Arguments | Drawn) -> frozenset[str]:
    """Return how a draw exceeds the tiles of its dims; see ``sizes.exceeding``."""
    declared = drawn.declared or NOTHING
    sizes = {name: drawn.recipe.get(name, 0) for name in declared.tiles}
    return exceeding(sizes, declared.tiles)


def larger_first(spec: object, drawn: Arguments | Drawn) -> frozenset[str]:
    """Return the ``subjects`` of a check that needs several blocks: such draws come first."""
    del spec
    return extents(drawn) | {"drawn"}


def dtype_names(dtypes: Any) -> tuple[str, ...]:
    """Return the names of one dtype, or of several in a tuple."""
    several: Any = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    return tuple(str(dtype) for dtype in several)


def dtype_word(dtypes: Any) -> str:
    """Return one dtype, or several, by name: ``"bfloat16"``, ``"bfloat16, int8"``."""
    return ", ".join(dtype_names(dtypes))


def keyword_word(value: Any) -> str:
    """Return a keyword argument's value in a word or two, the same in every process."""
    return getattr(value, "__name__", None) or without_addresses(str(value))[:60]


#: The kind of all numbers from 2 on.
SEVERAL = "several"


def keyword_kind(value: Any) -> str:
    """Return the kind of kernel of a keyword argument: ``SEVERAL`` for a number from 2 on.

    More programs or larger blocks make no different kernel. Any other value is its own kind, by its
    word.
    """
    try:
        several = not isinstance(value, str) and float(value) >= 2
    except (TypeError, ValueError):
        several = False
    return SEVERAL if several else keyword_word(value)


def without_addresses(text: str) -> str:
    """Return the ``repr`` of an object without its address, which differs in each process."""
    return _ADDRESS.sub("", text)


# Variants of a draw: other values for the same shapes, dtypes and options. A new shape is traced
# and compiled, which takes a hundred times as long as a second run. So one draw gives several
# calls: itself and its variants, which differ in value class and seed, and which the strategy could
# have drawn, too.


#: Limit on the variants of a draw, itself included.
MOST_VARIANTS = 16


@dataclass
class VariantSource:
    """The source of a draw's variants.

    Attributes:
      make: returns the arrays of the k-th variant, for k from 1.
      looked: whether the strategy read the values while drawing. It may have rejected draws
        (``filter``, ``assume``) or derived something from them, so variants would not fit.
      drawn: whether the draw is complete.
    """

    make: Callable[[int], Drawn]
    looked: bool = False
    drawn: bool = False

    def look(self) -> None:
        """Record that the values are read."""
        self.looked = self.looked or not self.drawn


def mark_drawn(drawn: Any) -> None:
    """Record that the draw is complete: from now on, reads of the values do not count."""
    kin = getattr(drawn, "kin", None)
    if isinstance(kin, VariantSource):
        kin.drawn = True


def variants(drawn: Any) -> Iterator[Any]:
    """Return the variants of a draw, at most ``MOST - 1``, made lazily.

    There are none if the strategy read its values, or if it does not come from ``arrays``.
    """
    kin = getattr(drawn, "kin", None)
    if not isinstance(kin, VariantSource) or kin.looked:
        return iter(())
    return (drawn.with_values(kin.make(k)) for k in range(1, MOST_VARIANTS))


def kth(values: str, seed: int, k: int, *, classes: tuple[str, ...], seeds: int) -> tuple[str, int]:
    """Return the value class and the seed of the k-th variant: every class, then the next seed."""
    position = classes.index(values) + k
    return classes[position % len(classes)], (seed + k // len(classes)) % seeds


def bounded[T](
    what: str, shape: Iterable[int], strategy: SearchStrategy[T], *, itemsize: int = 4
) -> SearchStrategy[T]:
    """Limit a strategy that draws arrays of ``shape`` to ``--pallas-max-bytes``.

    Args:
      what: name of the drawn object, for the message.
      shape: of each draw.
      strategy: draws it.
      itemsize: bytes of an element.

    Raises:
      DrawTooLargeError: when drawing, if it is too large.
    """
    sizes = tuple(shape)
    return _bounded(f"{what}{list(sizes)}", math.prod(sizes) * itemsize, strategy)


@st.composite
def _bounded(draw: DrawFn, what: str, number: int, strategy: SearchStrategy[Any]) -> Any:
    check_bytes(what, number)
    with unsteered():
        return draw(strategy)


def bytes_in(value: Any) -> int:
    """Count the bytes of all arrays in a value, also in tuples, lists and mappings."""
    if isinstance(value, (tuple, list, dict)):
        return sum(map(bytes_in, value.values() if isinstance(value, dict) else value))
    return int(value.nbytes) if isinstance(value, (np.ndarray, np.generic)) else 0
