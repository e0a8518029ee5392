"""``KernelSpec``: what a kernel computes, how to draw its inputs, and where it runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pallas_sim.chips import DEFAULT_TARGETS, Label
from pytest_pallas.errors import SpecError
from pytest_pallas.properties import Properties
from pytest_pallas.raises import Raises
from pytest_pallas.relations import Linear, Permuted, Relation

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from pytest_pallas.numerics import Tolerance

#: The backends that a kernel for a platform claims by default.
CLAIMED = {
    "tpu": ("tpu-sim", "interpret", "tpu-interpret", "tpu-compile", "tpu"),
    "gpu": ("gpu-sim", "gpu-interpret", "gpu-compile", "gpu"),
}

_RELATIONS: tuple[type, ...] = (Linear, Permuted, Relation)

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class ExpectedFailure:
    """A backend that cannot run the kernel. It is strict: if the check passes, the test fails.

    Attributes:
      reason: the reason, in a few words.
      jax: the last JAX version with this failure, e.g. ``"0.12.0.1"``.
      checks: the checks that fail; empty means all of ``scope``.
      scope: ``"all"``, or ``"executing"``: only checks and sanitizers that execute the kernel fail.
        Checks that only trace it or evaluate the reference (``Check.executes`` is False) must pass.
      hardware: whether a failure on a simulator is expected on its hardware, too: on ``"gpu"`` for
        ``"gpu-sim"``, and on ``"tpu"`` for ``"tpu-sim"``. False for what only a simulator sees,
        such as a race. An expected failure of the hardware itself goes first.
    """

    reason: str
    jax: str
    checks: Collection[str] = ()
    scope: Literal["all", "executing"] = "all"
    hardware: bool = True

    def __post_init__(self) -> None:
        if self.scope not in ("all", "executing"):  # pyright: ignore[reportUnnecessaryContains]
            raise SpecError(
                f'ExpectedFailure: scope must be "all" or "executing", not {self.scope!r}'
            )

    def covers(self, check: str, *, executes: bool) -> bool:
        """Whether a check is expected to fail.

        Args:
          check: its name.
          executes: whether it executes the kernel.
        """
        if self.scope == "executing" and not executes:
            return False
        return not self.checks or check in self.checks


@dataclass(frozen=True, kw_only=True)
class EquivalentMutant:
    """Mutants of the kernel that are right, too.

    They compute the same, or differ only in unspecified behavior: one more rounding, the order of
    random numbers.

    ``--pallas-mutate`` counts them as equivalent if no check kills them, and reports a mark that
    matches no mutant, or only killed ones.

    Attributes:
      operator: name of the mutation operator.
      source: a part of the line of code, such as ``"pl.when(k == last)"``.
      reason: why they are right, for a reviewer.
      change: the change, such as ``"always"``; by default any change of the operator.
      part: a part of the mutant's description, such as ``"grid axis 1"``, if the line has several
        mutants.
      caller: a part of the calling line, if the line is in a function with several callers; by
        default any.
    """

    operator: str
    source: str
    reason: str
    change: str = ""
    part: str = ""
    caller: str = ""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The backends, meshes and checks of a kernel.

    Attributes:
      backends: names of the backends that the kernel claims, for every chip (``"gpu-compile"``) or
        for some (``"gpu-compile:h100"``); by default all those of the platforms of ``kernel``.
      meshes: meshes to run on, e.g. ``({"x": 4}, {"x": 8})``; the kernel and the reference are
        then called with ``mesh=`` as well.
      checks: names of the checks to run; None for every check that applies.
      implementations: other implementations of the same function by name, with or without a
        kernel, called like it: with the options, and with the tuning that they take. The cross
        check compares them with it.
    """

    backends: Sequence[str] | None = None
    meshes: Sequence[Mapping[str, int]] = ()
    checks: Collection[str] | None = None
    implementations: Mapping[str, Callable[..., Any]] = field(
        default_factory=dict[str, Callable[..., Any]]
    )


@dataclass(frozen=True, kw_only=True)
class Marks:
    """Exceptions that a reviewer accepted, each with a reason.

    Attributes:
      tolerance: replaces the default judgement; rarely needed. A mapping has one for a dtype, a
        backend, or both: ``"bfloat16"``, ``"gpu"``, ``"gpu bfloat16"``; the most specific holds.
      xfail: expected failures by backend label (``"interpret"``, ``"tpu-interpret:v5e"``); those
        of a simulator hold on its hardware, too (see ``ExpectedFailure.hardware``).
      equivalent: mutants that compute the same.
    """

    tolerance: Tolerance | Mapping[str, Tolerance] | None = None
    xfail: Mapping[str, ExpectedFailure] = field(default_factory=dict[str, ExpectedFailure])
    equivalent: Sequence[EquivalentMutant] = ()


@dataclass(frozen=True, kw_only=True)
class KernelSpec(Properties, Scope, Marks):
    """The function that a kernel computes, the strategy of its inputs, and its properties.

    All fields are keywords of the constructor. ``Properties`` has the properties of the outputs,
    ``Scope`` the backends, meshes and checks, ``Marks`` the accepted exceptions.

    Attributes:
      name: a short, unique name; test ids begin with it.
      kernel: the function under test, called ``kernel(*args, **options, **tuning)``; or a mapping
        from platform (``"tpu"``, ``"gpu"``) to such a function. A plain function is written for
        the TPU; the portable interpreter runs it too.
      reference: the same function in jnp, called ``reference(*args, **options)``. It must follow
        the dtypes of its inputs: the oracle is this function on float64 inputs.
      inputs: a strategy that draws a tuple of positional arguments or ``strategies.Arguments``.
        With ``meshes``, a function from the ``jax.sharding.Mesh`` to such a strategy.
      typical: calls that are typical of the kernel's use, as ``strategies.Arguments`` or tuples; a
        ``jax.ShapeDtypeStruct`` may stand for an array (see ``strategies.shaped``). With
        ``meshes``, a function from the ``jax.sharding.Mesh`` to such calls. Compiling backends
        compile them besides what is drawn, and report what their code costs.
      family: its family in reports; by default the name of its package.
      file: the file that defines the spec; set automatically.

    Raises:
      SpecError: a field is wrong. Errors that need drawing or running are found later.
    """

    name: str
    kernel: Callable[..., Any] | Mapping[str, Callable[..., Any]]
    reference: Callable[..., Any]
    inputs: SearchStrategy[Any] | Callable[[Any], SearchStrategy[Any]]
    typical: Sequence[Any] | Callable[[Any], Sequence[Any]] = ()
    family: str = ""
    file: str = ""

    def __post_init__(self) -> None:
        # Frame 0 is this method, 1 the generated __init__, 2 the caller of KernelSpec(...).
        caller = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
        if not self.file:
            object.__setattr__(self, "file", caller.f_code.co_filename)
        if not self.family:
            package = str(caller.f_globals.get("__package__") or "")
            object.__setattr__(self, "family", package.rpartition(".")[2] or "kernels")
        for problem in _problems(self):
            raise SpecError(f"spec {self.name!r} in {self.file}: {problem}")

    @property
    def claimed(self) -> tuple[str, ...]:
        """The backends that the kernel claims to run on, as ``NAME`` or ``NAME:TARGET``."""
        if self.backends is not None:
            return tuple(self.backends)
        platforms = self.kernel if isinstance(self.kernel, Mapping) else ("tpu",)
        return tuple(name for platform in platforms for name in CLAIMED[platform])

    def claims(self, backend: str) -> bool:
        """Whether the kernel claims to run on a backend, given as ``NAME`` or ``NAME:TARGET``.

        A name alone stands for the default chip of its platform, as it does on the command line.
        """
        found = Label.of(backend)
        chips = [found.target] if found.target else DEFAULT_TARGETS.values()
        return found.name in self.claimed or any(
            f"{found.name}:{chip}" in self.claimed for chip in chips
        )

    def kernel_for(self, platform: str) -> Callable[..., Any]:
        """The function to run on ``platform`` (``"tpu"``, ``"gpu"`` or ``"any"``)."""
        if not isinstance(self.kernel, Mapping):
            return self.kernel
        return self.kernel.get(platform) or next(iter(self.kernel.values()))


def _problems(spec: KernelSpec) -> list[str]:
    """The errors in the fields of ``spec``, without drawing or running."""
    problems: list[str] = []
    if not _NAME.fullmatch(spec.name):
        problems.append("name must be a Python identifier, because test ids are built from it")
    if isinstance(spec.kernel, Mapping):
        unknown = sorted(set(spec.kernel) - set(CLAIMED))
        if unknown or not spec.kernel:
            problems.append(
                f"kernel must map a platform of {sorted(CLAIMED)} to a function, "
                f"but its keys are {sorted(spec.kernel)}"
            )
        functions: list[Any] = list(spec.kernel.values())
    else:
        functions = [spec.kernel]
    if not all(callable(function) for function in functions):
        problems.append("kernel must be a function, or a mapping from platform to function")
    if not callable(spec.reference):
        problems.append(
            f"reference must be a function in jnp, not {spec.reference!r}; without "
            "one there is nothing to compare with"
        )
    axes = list(spec.batch_axes)
    named = [axis for axis in axes if axis is not None]
    if any(not isinstance(axis, int) or axis < 0 for axis in named) or (axes and not named):  # pyright: ignore[reportUnnecessaryIsInstance]
        problems.append(
            "batch_axes must hold the number of an axis, from 0, or None for each positional "
            f"argument, and one axis at least, not {spec.batch_axes!r}"
        )
    if not isinstance(spec.exact, int) or spec.exact < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        problems.append(
            "exact must be True, False or the largest integer that is exact, such as 2**20, not "
            f"{spec.exact!r}"
        )
    others: Mapping[str, Any] = spec.implementations
    if not all(callable(function) for function in others.values()):
        problems.append(f"implementations must map names to functions, not {dict(others)!r}")
    unknown: list[Any] = [each for each in spec.relations if not isinstance(each, _RELATIONS)]
    if unknown:
        problems.append(
            f"relations must be Linear(...), Permuted(...) or Relation(...), not {unknown[0]!r}"
        )
    wrong: list[Any] = [each for each in spec.raises if not isinstance(each, Raises)]  # pyright: ignore[reportUnnecessaryIsInstance]
    if wrong:
        problems.append(f"raises must hold Raises(args, error, match=...), not {wrong[0]!r}")
    if axes and spec.meshes:
        problems.append("batch_axes and meshes exclude each other: the kernel shards itself")
    if spec.meshes and not callable(spec.inputs):
        problems.append("with meshes, inputs must be a function from the mesh to a strategy")
    if callable(spec.typical) != bool(spec.meshes and spec.typical):
        problems.append(
            "typical must be a sequence of calls; with meshes, a function from the mesh to one"
        )
    if spec.ignored is not None and not callable(spec.ignored):  # pyright: ignore[reportUnnecessaryComparison]
        problems.append(
            "ignored must be a function that returns None or a bool array for each positional "
            f"argument, not {spec.ignored!r}"
        )
    if not spec.meshes and not hasattr(spec.inputs, "example"):
        problems.append("inputs must be a hypothesis strategy, such as strategies.arrays(...)")
    return problems
