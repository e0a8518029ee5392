"""The reference, evaluated twice: in float64 as the oracle, in the kernel's dtypes as baseline."""

from __future__ import annotations

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pytest_pallas.backends import Call
from pytest_pallas.backends.digests import digest
from pytest_pallas.backends.execution import to_numpy
from pytest_pallas.backends.mappings import relieve
from pytest_pallas.backends.tracing import Static, apply, identity, jitted, split
from pytest_pallas.errors import PallasTestError, ReferenceError
from pytest_pallas.noise import noise_of
from pytest_pallas.numerics import Noise, is_complex, is_float, wide

#: A flattened pytree: path and array of each leaf.
Leaves = list[tuple[str, np.ndarray[Any, Any]]]


@dataclass(frozen=True)
class Expected:
    """What a kernel should return.

    Attributes:
      oracle: the reference in float64 on the host.
      baseline: the reference in the kernel's own dtypes.
      depth: the largest dim of any input: no sum in the kernel has more terms than a few times
        that, which bounds what another order of summation can change.
      sensitivity: by path, how much the oracle changes with its inputs; see ``_sensitivity``.
        Evaluated when it is first looked at, like ``noise``: most outputs pass without.
      noise: for a path, what rounding alone does to that output, or None if that cannot be said.
        See ``noise_of``.
    """

    oracle: Leaves
    baseline: Leaves
    depth: int
    sensitivity: Mapping[str, float]
    noise: Callable[[str], Noise | None] = lambda _: None


class Later(Mapping[str, float]):
    """A mapping that is made when somebody looks at it."""

    def __init__(self, make: Callable[[], Mapping[str, float]]) -> None:
        """What ``make`` gives, which is called once."""
        self._made = functools.cache(make)

    def __getitem__(self, path: str) -> float:
        return self._made()[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made())

    def __len__(self) -> int:
        return len(self._made())


#: Relative size of the perturbation that measures sensitivity. Large, so that a step (a floor, a
#: comparison) does not look like a steep slope; small against the curvature of a kernel.
PERTURBATION = 2.0**-6

#: How often it is measured: one perturbation may by chance leave a single output as it is.
PERTURBATIONS = 4


@dataclass
class ExpectedCache:
    """The expectations of the last calls: checks and backends share examples.

    Attributes:
      most: how many are kept.
    """

    most: int = 128
    _kept: OrderedDict[Hashable, Expected | Future[Expected]] = field(
        default_factory=OrderedDict[Hashable, "Expected | Future[Expected]"]
    )

    def get(
        self,
        reference: Callable[..., Any],
        args: tuple[Any, ...],
        options: Mapping[str, Any],
        *,
        nan_ok: bool = False,
    ) -> Expected:
        """``expected`` for these arguments, evaluated once."""
        relieve()
        key = _key(reference, args, options, nan_ok)
        found = self._kept.pop(key, None)
        if isinstance(found, Future):
            found = found.result()
        if found is None:
            found = expected(reference, args, options, nan_ok=nan_ok)
        self._keep(key, found)
        return found

    def begin(
        self,
        reference: Callable[..., Any],
        args: tuple[Any, ...],
        options: Mapping[str, Any],
        *,
        nan_ok: bool = False,
    ) -> None:
        """Evaluate in another thread what ``get`` will be asked for, while the kernel compiles.

        Contexts of the calling thread, such as ``jax.default_matmul_precision``, do not hold there.
        """
        key = _key(reference, args, options, nan_ok)
        if key not in self._kept:
            task = self._thread.submit(expected, reference, args, options, nan_ok=nan_ok)
            self._keep(key, task)

    def _keep(self, key: Hashable, found: Expected | Future[Expected]) -> None:
        self._kept[key] = found
        while len(self._kept) > self.most:
            self._kept.popitem(last=False)

    @functools.cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max_workers=1, thread_name_prefix="pallas-oracle")


def _key(
    reference: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any], nan_ok: bool
) -> Hashable:
    return identity(reference), digest((args, dict(options))), nan_ok


def expected(
    reference: Callable[..., Any],
    args: tuple[Any, ...],
    options: Mapping[str, Any],
    *,
    nan_ok: bool = False,
) -> Expected:
    """Evaluate a reference as oracle and as baseline.

    Args:
      reference: the function in jnp or numpy.
      args: pytrees of arrays.
      options: keyword arguments, passed as they are.
      nan_ok: whether the oracle may be NaN where all inputs are finite.

    Raises:
      ReferenceError: the reference raised, returned no arrays, or is NaN for finite inputs.
    """
    arrays = [to_numpy(leaf) for leaf in jax.tree.leaves(args) if _is_array(leaf)]
    with jax.default_device(jax.devices("cpu")[0]):
        baseline = _evaluate(reference, args, options, "in the kernel's dtypes")
    with _in_float64():
        widened = jax.tree.map(_widened, args)
        oracle = _evaluate(reference, widened, options, "as the float64 oracle")
    if not nan_ok and all(_finite(array) for array in arrays):
        for path, array in oracle:
            count = int(np.isnan(array).sum()) if is_float(array.dtype) else 0
            if count:
                raise ReferenceError(
                    f"the oracle is NaN in {count} of {array.size} elements of "
                    f"{path or 'the output'}, although every input is finite, so it says nothing "
                    f"about the kernel. Define these elements in {_name(reference)} (a fully "
                    "masked row is 0, say), or set nan_ok=True if NaN is the right answer."
                )
    depth = max((dim for array in arrays for dim in array.shape), default=1)

    @functools.cache
    def noise() -> Mapping[str, Noise]:
        call = Call(function=reference, args=widened, options=options)
        with _in_float64():
            return noise_of(call, oracle, baseline)

    def sensitivity() -> Mapping[str, float]:
        with _in_float64():
            return _sensitivity(reference, widened, options, oracle)

    return Expected(
        oracle, baseline, max(depth, 1), Later(sensitivity), lambda path: noise().get(path)
    )


@contextlib.contextmanager
def _in_float64() -> Generator[None]:
    """On the host, in float64."""
    with (
        jax.default_device(jax.devices("cpu")[0]),
        jax.enable_x64(True),
        jax.default_matmul_precision("highest"),
    ):
        yield


def _sensitivity(
    reference: Callable[..., Any], args: Any, options: Mapping[str, Any], oracle: Leaves
) -> Mapping[str, float]:
    """How much each output changes with the inputs: root mean square, per relative change.

    Every float is changed by plus or minus ``PERTURBATION``, ``PERTURBATIONS`` times, with signs
    from a fixed seed. For a sum this is the size of its terms, also where the sum itself nearly
    cancels, and so the scale of the error that another order of summation makes. Empty where the
    reference does not take other inputs than these.
    """
    generator = np.random.Generator(np.random.Philox(0))

    def moved(leaf: Any) -> Any:
        if not _is_array(leaf) or not _is_inexact(leaf):
            return leaf
        signs = generator.integers(0, 2, np.shape(leaf)) * 2 - 1
        return leaf * (1 + PERTURBATION * signs)

    squares = {path: 0.0 for path, array in oracle if is_float(array.dtype) and array.size}
    for _ in range(PERTURBATIONS if squares else 0):
        try:
            moved_args = jax.tree.map(moved, args)
            perturbed = dict(_evaluate(reference, moved_args, options, "near its inputs"))
        except ReferenceError:
            return {}
        for path, before in oracle:
            if path in squares:
                with np.errstate(all="ignore"):
                    change = (wide(perturbed[path]) - wide(before)) / PERTURBATION
                squares[path] += float(np.square(change[np.isfinite(change)]).sum() / change.size)
    return {path: float(np.sqrt(total / PERTURBATIONS)) for path, total in squares.items()}


def flatten(values: Any) -> Leaves:
    """A pytree as (path, numpy array) pairs. A lone array has the path ""."""
    return [
        (jax.tree_util.keystr(path), to_numpy(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(values)
    ]


def _evaluate(
    reference: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any], how: str
) -> Leaves:
    static, arrays = split(Call(function=reference, args=args, options=options))
    try:
        # A compiled reference is several times faster than one op by op at every new shape.
        leaves = flatten(jax.block_until_ready(jitted(literal=True)(static, arrays)))
    except Exception:
        leaves = _as_it_is(reference, static, arrays, how)
    if not leaves or any(array.dtype.kind in "OSU" for _, array in leaves):
        raise ReferenceError(
            f"the reference {_name(reference)} must return an array or a pytree of arrays"
        )
    return leaves


def _as_it_is(reference: Callable[..., Any], static: Static, arrays: list[Any], how: str) -> Leaves:
    """Evaluate a reference that jit does not take: numpy, or Python that looks at values."""
    try:
        return flatten(jax.block_until_ready(apply(static, arrays)))
    except PallasTestError:
        raise
    except Exception as error:
        shapes = ", ".join(f"{x.dtype}{list(x.shape)}" for x in arrays)
        raise ReferenceError(
            f"the reference {_name(reference)} raised when it was evaluated {how} on ({shapes}): "
            f"{type(error).__name__}: {error}"
        ) from error


def _is_array(leaf: object) -> bool:
    return isinstance(leaf, (np.ndarray, np.generic, jax.Array))


def _widened(leaf: Any) -> Any:
    """Floats as float64, complex as complex128; everything else as it is."""
    if not _is_array(leaf) or _is_key(leaf):
        return leaf
    array = np.asarray(leaf)
    return wide(array) if _is_inexact(array) else array


def _is_key(array: Any) -> bool:
    """Whether it holds typed PRNG keys, as ``jax.random.key`` makes them."""
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def _is_inexact(array: Any) -> bool:
    return not _is_key(array) and (is_float(array.dtype) or is_complex(array.dtype))


def _finite(array: np.ndarray[Any, Any]) -> bool:
    if is_float(array.dtype) or is_complex(array.dtype):
        return bool(np.isfinite(wide(array)).all())
    return True


def _name(function: Any) -> str:
    """The name of a function, also inside partials and the wrappers of checks."""
    inner = getattr(function, "func", None) or getattr(function, "function", None)
    return _name(inner) if callable(inner) else getattr(function, "__name__", repr(function))
