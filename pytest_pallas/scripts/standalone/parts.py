# ruff: noqa: T201, D102
"""What stand-alone scripts are made of: the source of this module's definitions is copied there.

So nothing here uses another module of this package. A script holds the definitions that it needs,
a ``Case``, and the name of one of the questions of ``questions.py``.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

#: What is traced among the arguments; everything else is passed as it is.
ARRAYS = (np.ndarray, jax.Array)


@dataclass(frozen=True)
class Limit:
    """What the test allowed an output: ``allowed`` as its worst error, which was at ``index``.

    Errors are in ulps of the output's scale; of integers, differences. ``rule`` is ``close`` (each
    element), ``rms`` (the root mean square of all errors), ``exact`` (bit for bit) or ``type``
    (the shape and the dtype only).
    """

    rule: str
    allowed: float = 0.0
    index: tuple[int, ...] = ()
    fraction: float = 0.0
    any_dtype: bool = False


@dataclass(frozen=True)
class Case:
    """The failing call: ``kernel(*args, **options, **tuning)``, ``reference(*args, **options)``.

    ``backends`` are those of what it is compared with. The context of a backend gives None where
    JAX runs calls inside of it, or a function that takes the place of ``call``.
    """

    kernel: Callable[..., Any]
    reference: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]
    tuning: dict[str, Any]
    backend: Callable[[], contextlib.AbstractContextManager[Any]]
    limits: dict[str, Limit] = field(default_factory=dict[str, Limit])
    more: dict[str, Any] = field(default_factory=dict[str, Any])
    backends: tuple[Callable[[], contextlib.AbstractContextManager[Any]], ...] = ()


class KernelRaisedError(Exception):
    """The kernel raised; the cause is what it raised."""


class StandIn:
    """Stands for everything in a test framework that a module with kernels may import."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, key: Any) -> Any:
        return self

    def __or__(self, other: Any) -> Any:
        return self

    def __iter__(self) -> Any:
        return iter(())

    def __mro_entries__(self, bases: Any) -> tuple[Any, ...]:
        return ()


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a stand-in for a test framework that is not installed; the last to be asked."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if not any(f"{fullname}.".startswith(f"{name}.") for name in self.names):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        class Module(types.ModuleType):
            def __getattr__(self, name: str) -> Any:
                return getattr(StandIn(), name)

        return Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to execute."""


def load(name: str, folder: str, file: str) -> types.ModuleType:
    """The module ``name`` in ``folder``; if it has no name to be imported by, ``file``."""
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        if folder:
            return importlib.import_module(name)
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{file} is no Python file")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception:
        traceback.print_exc()
        print(f"cannot import {file or name}")
        sys.exit(2)
    return module


def nested(module: types.ModuleType, qualname: str, number: int = 0, *cells: Any) -> Any:
    """The function of a module that has no name there: in another function, or a lambda.

    ``number`` counts those of one qualified name; ``cells`` are the values of its free variables.
    """

    def codes(code: types.CodeType) -> Any:
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                yield inner
                yield from codes(inner)

    file = str(module.__file__)
    whole = compile(Path(file).read_text(encoding="utf-8"), file, "exec", dont_inherit=True)
    code = [code for code in codes(whole) if code.co_qualname == qualname][number]
    closure = tuple(types.CellType(cell) for cell in cells)
    return types.FunctionType(code, vars(module), code.co_name, None, closure)


def with_defaults(function: Any, defaults: Any, keywords: Any) -> Any:
    """A nested function with the defaults of its arguments."""
    function.__defaults__, function.__kwdefaults__ = defaults, keywords
    return function


def array(dtype: str, shape: tuple[int, ...], text: str) -> Any:
    """The array whose bytes are ``text`` in base64, a byte at least for each element."""
    data = np.frombuffer(base64.b64decode(text), np.uint8)
    return data.view(np.dtype(dtype)).reshape(shape).copy()


def stored(dtype: str, shape: tuple[int, ...], key: str) -> Any:
    """The array whose bytes are an entry of the file beside this script."""
    with np.load(Path(__file__).with_suffix(".npz")) as file:
        return file[key].view(np.dtype(dtype)).reshape(shape)


def mesh_of(**axes: int) -> Any:
    """The mesh of the test, over the first devices."""
    from jax.sharding import AxisType

    count = int(np.prod(list(axes.values())))
    return jax.make_mesh(
        tuple(axes.values()),
        tuple(axes),
        axis_types=(AxisType.Auto,) * len(axes),
        devices=jax.devices()[:count],
    )


def split(
    function: Callable[..., Any], args: Any, options: Any, kinds: Any = ARRAYS
) -> tuple[Callable[..., Any], list[Any]]:
    """``function(*args, **options)`` as a function of the arrays among them, and those."""
    leaves, tree = jax.tree.flatten((args, options))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, kinds)]

    def apply(*arrays: Any) -> Any:
        full = list(leaves)
        for place, value in zip(places, arrays, strict=True):
            full[place] = value
        args, options = jax.tree.unflatten(tree, full)
        return function(*args, **options)

    return apply, [leaves[place] for place in places]


def call(
    function: Callable[..., Any],
    args: Any,
    options: Any,
    *,
    jit: bool = True,
    literal: bool = False,
) -> Any:
    """``function(*args, **options)``; ``literal`` rounds every value to its dtype."""
    apply, arrays = split(function, args, options)
    compiler = {"xla_allow_excess_precision": False} if literal else None
    applied = jax.jit(apply, compiler_options=compiler) if jit else apply
    return jax.block_until_ready(applied(*map(jnp.array, arrays)))


def named(values: Any) -> dict[str, Any]:
    """The arrays of a pytree, by their paths."""
    found: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(values):
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        found[jax.tree_util.keystr(path) or "output"] = np.asarray(leaf)
    return found


def answer(case: Case, function: Any, args: Any, options: Any, *, jit: bool = True) -> Any:
    """Call a kernel as the failing test did."""
    try:
        with case.backend() as simulator:
            return (simulator or call)(function, args, options, jit=jit)
    except Exception as error:
        raise KernelRaisedError from error


def run(case: Case, function: Any, args: Any, options: Any, *, jit: bool = True) -> dict[str, Any]:
    """``answer`` by the paths of its outputs."""
    return named(answer(case, function, args, options, jit=jit))


def wide(leaf: Any) -> Any:
    """Floats as float64 and complex numbers as complex128; everything else as it is."""
    if not isinstance(leaf, ARRAYS) or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    values = np.asarray(leaf)
    if jnp.issubdtype(values.dtype, jnp.complexfloating):
        return values.astype(np.complex128)
    return values.astype(np.float64) if jnp.issubdtype(values.dtype, jnp.floating) else values


def expect(reference: Any, args: Any, options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the reference gives in float64, and in the dtypes of the inputs."""

    def evaluate(args: Any) -> dict[str, Any]:
        try:
            return named(call(reference, args, options, literal=True))
        except Exception:  # numpy, or Python that looks at values
            return named(call(reference, args, options, jit=False))

    with jax.default_device(jax.devices("cpu")[0]):
        own = evaluate(args)
        with jax.enable_x64(True), jax.default_matmul_precision("highest"):
            return evaluate(jax.tree.map(wide, args)), own


def errors_of(actual: Any, target: Any, dtype: Any) -> tuple[Any, Any]:
    """Errors and their scale; of floats in ulps of the output's scale, else differences.

    The scale of an element is its magnitude, but at least the root mean square of all. Where one
    side is NaN or infinite and the other is not the same, the error is infinite.
    """
    with np.errstate(all="ignore"):
        same = (actual == target) | (np.isnan(actual) & np.isnan(target))
        errors = np.where(same, 0.0, np.abs(actual - target))
        errors = np.where(np.isfinite(errors), errors, np.inf)
        if dtype is None:
            return errors, np.maximum(np.abs(target), 1.0)
        info = jnp.finfo(dtype)
        least = float(info.smallest_normal)
        least /= float(info.eps) if least < 1e-30 else 1.0  # JAX flushes what is below to 0
        finite = np.abs(target)[np.isfinite(target)]
        rms = float(np.sqrt(np.square(finite).mean())) if finite.size else 0.0
        scale = np.fmax(np.where(np.isfinite(target), np.abs(target), 0.0), max(rms, least))
        return errors / scale / float(info.eps), scale


def describe(array: Any) -> str:
    """Dtype and shape."""
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def judge(case: Case, outputs: Any, expected: Any) -> bool:
    """Print how far outputs are from what is expected; True if further than the test allowed."""
    oracle, own = expected
    if outputs.keys() != oracle.keys():
        print(f"outputs: {', '.join(outputs)}; of the reference: {', '.join(oracle)}")
        return True
    wrong = [
        judge_one(name, outputs[name], oracle[name], own[name], case.limits.get(name))
        for name in oracle
    ]
    return any(wrong)


def judge_one(
    name: str, actual: Any, oracle: Any, own: Any, limit: Any, *, claim: str = ""
) -> bool:
    """``judge`` of one output. Its limit is None where the test came to none.

    ``claim`` says what ``oracle`` is, where it is not that of the reference.
    """
    print(f"{name}: {describe(actual)}; {claim or 'of the reference'}: {describe(own)}")
    if actual.shape != oracle.shape:
        return True
    if limit is not None and not limit.any_dtype and actual.dtype != own.dtype:
        return True
    if actual.size == 0:
        return False
    is_float = jnp.issubdtype(actual.dtype, jnp.inexact)
    target = oracle if is_float else own
    if is_float and not jnp.issubdtype(actual.dtype, jnp.complexfloating):
        largest = float(jnp.finfo(actual.dtype).max)
        with np.errstate(all="ignore"):  # what overflows there is what the format makes of it
            held = oracle.astype(actual.dtype).astype(np.float64)
        target = np.where(np.abs(oracle) <= largest, oracle, held)
    dtype = actual.dtype if is_float else None
    kind = np.complex128 if np.iscomplexobj(target) else np.float64
    actual, target, own = (value.astype(kind) for value in (actual, target, own))
    errors, scale = errors_of(actual, target, dtype)
    worst = np.unravel_index(int(np.argmax(errors)), errors.shape)
    place = tuple(int(i) for i in worst)
    unit = "ulps of the output's scale" if is_float else "as a difference"
    print(f"  largest error {errors[place]:.6g} ({unit}) at {place}")
    print(f"    kernel                         {actual[place]}")
    if claim:
        print(f"    {claim:<30} {target[place]}")
    else:
        print(f"    reference in float64           {target[place]}")
        print(f"    reference in its inputs' dtypes {own[place]}")
    if limit is None or limit.rule == "type":
        return False
    if not limit.index:
        limit = replace(limit, index=place)
    if limit.rule == "exact":
        with np.errstate(all="ignore"):
            held = target if dtype is None else target.astype(dtype).astype(kind)
        count = int(np.count_nonzero((actual != held) & ~(np.isnan(actual) & np.isnan(held))))
        print(f"  {count} of {errors.size} elements differ; the test allowed none")
        return count > 0
    if limit.rule == "rms":
        rms = float(np.sqrt(np.square(errors).mean()))
        print(f"  root mean square of the errors {rms:.6g}; the test allowed {limit.allowed:.6g}")
        return not rms <= limit.allowed
    # Of elements of a larger scale the test allowed as much in proportion.
    allowed = limit.allowed * np.maximum(1.0, scale[limit.index] / scale)
    count = int(np.count_nonzero(~(errors <= allowed)))
    share = f"{count} of {errors.size} elements"
    print(f"  {share} are wrong; the test allowed {limit.allowed:.6g} at {limit.index}")
    return count > limit.fraction * errors.size
