"""``KernelSpec``: what a kernel computes, how to draw its inputs, and where it runs.

``Properties`` are shared by specs, by calls in tests and by the contexts of checks.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from pallas_sim.chips import DEFAULT_TARGETS, Label
from pallas_sim.errors import OptionError
from pytest_pallas.draw.meshes import Axes, MeshAxes, mesh_axes, problem_with_meshes
from pytest_pallas.errors import SpecError

if TYPE_CHECKING:
    import numpy as np
    from hypothesis.strategies import SearchStrategy

    from pytest_pallas.draw.arguments import Arguments
    from pytest_pallas.judge.tolerance import AnyTolerance


@dataclass(frozen=True, kw_only=True)
class Properties:
    """Properties of a kernel, besides outputs that are close to the reference.

    Attributes:
      exact: True if the kernel is linear, so that small integers held in floats give a bitwise
        equal output in any order of summation. A number if integers up to that size do: the value
        class ``"full"`` draws integers up to 2**20, which are exact in sums of a few terms, but not
        in products.
      differentiable: positions of the arguments to differentiate by; the gradient check needs it.
      vmappable: whether the kernel supports ``jax.vmap``. None: unless it reaches other devices,
        or has operands in HBM, of which JAX compiles no batch for a TPU.
      batch_axes: for each positional argument the axis along which the kernel's computations are
        independent, or None for an argument that all of them need: ``(0, None)`` for ``x @ w``.
        Axis 0 of every output is that axis. The sharding check needs it. It excludes ``meshes``.
      relations: relations between outputs of the kernel: ``Linear``, ``Permuted`` and ``Relation``
        of ``pytest_pallas``, for the checks linearity, permutation and relation. They also find
        errors that kernel and reference share.
      deterministic: False if the order of additions depends on the schedule, as with atomic
        additions: two right runs may differ in their last bits. The determinism check does not
        apply then, and what compares other runs bit for bit compares them with the reference.
      nan_ok: whether NaN is a right output for finite inputs.
      ignored: a function for elements of the arguments that must not affect the output, such as
        keys beyond a sequence's length: ``ignored(*args, **options)`` returns for each positional
        argument None or a bool array of its shape, True where ignored. The padding check replaces
        these elements.
      raises: calls that the kernel must reject, each with its error: ``Raises`` of
        ``pytest_pallas``, for the check raises.
    """

    exact: bool | int = False
    differentiable: Sequence[int] = ()
    vmappable: bool | None = None
    batch_axes: Sequence[int | None] = ()
    relations: Sequence[AnyRelation] = ()
    deterministic: bool = True
    nan_ok: bool = False
    ignored: Callable[..., Any] | None = None
    raises: Sequence[Raises] = ()


@dataclass(frozen=True, kw_only=True)
class CallProperties(Properties):
    """Properties that a call of ``pallas_check`` gives. A spec has the first in ``Marks``.

    Attributes:
      tolerance: replaces the default judgement; see ``Marks``.
      check_dtype: whether the kernel must return the reference's dtypes.
      jit: False for a kernel that needs the values of its arguments.
      claimed: the backends that the kernel is written for; see ``KernelSpec``.
    """

    tolerance: AnyTolerance | Mapping[str, AnyTolerance] | None = None
    check_dtype: bool = True
    jit: bool = True
    claimed: Sequence[str] = ()


_PROPERTIES = tuple(field.name for field in dataclasses.fields(Properties))


def properties_of(holder: Properties) -> dict[str, Any]:
    """Return the properties of an object, as keyword arguments for another one."""
    return {name: getattr(holder, name) for name in _PROPERTIES}


# ``Raises``: a call that a kernel must reject, and the error with which it must reject it.


@dataclass(frozen=True, eq=False)  # comparing arrays gives arrays
class Raises:
    """A call that the kernel must reject with an error, as ``error_inputs`` of PyTorch's OpInfo.

    Examples::

        Raises((jax.ShapeDtypeStruct((8, 100), "float32"),), ValueError, match="multiple of 128")
        Raises(lambda call: (call.args[0], call.args[1][1:]), ValueError, match="rows")

    Attributes:
      args: the positional arguments: arrays, pytrees of them, anything else. A
        ``jax.ShapeDtypeStruct`` stands for an array of zeros. Or one ``strategies.Arguments``, as
        ``strategies.shaped`` makes it. Or a function from a drawn call, which the kernel accepts,
        to one that it must reject: ``Arguments``, or a tuple that replaces the drawn ``args``.
      error: the type of the error, or a tuple of types; a subclass will do.
      match: a regular expression that the message must contain (``re.search``); empty for any.
      options: keyword arguments of the kernel, tuning among them. They replace those of the call.
      name: for messages; by default the position in ``raises``.

    Raises:
      SpecError: a field is wrong, or ``error`` is so general that a typing error would pass.
    """

    args: tuple[Any, ...] | Arguments | Callable[[Arguments], Arguments | tuple[Any, ...]]
    error: type[Exception] | tuple[type[Exception], ...]
    match: str = ""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    name: str = ""

    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem is not None:
            raise SpecError(f"Raises{f' {self.name!r}' if self.name else ''}: {problem}")

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The types of the error."""
        return self.error if isinstance(self.error, tuple) else (self.error,)

    @property
    def description(self) -> str:
        """The error in words, such as ``ValueError matching 'rows'``."""
        types = " or ".join(kind.__name__ for kind in self.errors)
        return f"{types} matching {self.match!r}" if self.match else types

    def accepts(self, error: Exception) -> bool:
        """Return whether an error has the type and the message."""
        return isinstance(error, self.errors) and self.matches(error)

    def matches(self, error: Exception) -> bool:
        """Return whether an error has the message."""
        return re.search(self.match, str(error)) is not None


def _problem(raises: Raises) -> str | None:
    """Return what is wrong with the fields, or None."""
    args: Any = raises.args
    if not callable(args) and not isinstance(args, tuple) and not hasattr(args, "recipe"):
        return (
            "args must be a tuple of positional arguments, strategies.Arguments, or a function of "
            f"a drawn call, not {type(args).__name__}; one array is (array,)"
        )
    errors: tuple[Any, ...] = raises.errors
    if not errors or not all(isinstance(e, type) and issubclass(e, Exception) for e in errors):
        return f"error must be a type of exception, or a tuple of them, not {raises.error!r}"
    if Exception in errors:
        return (
            "error must be more specific than Exception, which a mistake in the spec raises, too; "
            "give the type that the kernel raises, such as ValueError"
        )
    try:
        re.compile(raises.match)
    except (re.error, TypeError) as error:
        return f"match must be a regular expression, and {raises.match!r} is none: {error}"
    return None


# Metamorphic relations: what must hold between two answers of a kernel, whatever is right.
#
# They need no reference. A kernel and its reference that share a mistake agree with each other, and
# may still break a relation: Chen, Cheung and Yiu, "Metamorphic testing: a new approach for
# generating next test cases", 1998 (arXiv:2002.12543).


#: Whether a relation holds for a drawn call; it may depend on its options.
When = Callable[["Arguments"], bool]


def always(arguments: Arguments) -> bool:
    """Hold for every drawn call."""
    del arguments
    return True


@dataclass(frozen=True)
class Linear:
    """The kernel is linear in an argument, or in several together, while the others are fixed.

    ``f(c x) = c f(x)`` for a power of two, negative where the dtype allows it: bit for bit, since
    such a factor commutes with rounding, except that 0.0 equals -0.0, and except for what is near
    the least numbers of the dtype or overflows. Where the reference computes with numbers that
    small, as a softmax does, losing one may decide how an exact tie is rounded, so that the rule of
    judgement holds. And ``f(x) = f(a) + f(b)`` where ``a + b = x``.

    ``Linear(0)`` and ``Linear(1)`` hold for ``x @ y``, ``Linear((0, 1))`` for ``x + y``.

    Attributes:
      argument: position of the argument, or positions of those that are scaled and added
        together. All leaves of a pytree are; bools are left alone.
      exact: False judges scaling by the rule of judgement: for a kernel that computes in a format
        in which a power of two does not commute with rounding, such as fixed point.
      when: for which drawn calls it holds.

    Raises:
      SpecError: ``argument`` is no position.
    """

    argument: int | Sequence[int]
    exact: bool = True
    when: When = always

    def __post_init__(self) -> None:
        if not self.positions or not all(_is_position(position) for position in self.positions):
            raise SpecError(
                f"Linear: argument must be the position of a positional argument, from 0, or "
                f"several of them, not {self.argument!r}"
            )

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the arguments."""
        return (self.argument,) if isinstance(self.argument, int) else tuple(self.argument)

    def __str__(self) -> str:
        return f"linear in {_arguments(self.positions)}"


@dataclass(frozen=True)
class Permuted:
    """Permuting some arguments together leaves the output as it is, or permutes it likewise.

    ``Permuted({1: 0, 2: 0})`` holds for the keys and values of attention without a causal mask,
    ``Permuted({0: 0}, output=0)`` for the rows of a softmax.

    Attributes:
      args: the axis of each argument that is permuted, by its position; the arguments have the
        same size there. It holds for every leaf of a pytree.
      output: the axis of the output along which it is permuted too; None leaves it as it is. A
        sequence says it for each leaf of a pytree.
      exact: whether the answer must be the same to the bit, because nothing is summed over the
        axis. Not for kernels with ``exp`` and the like: their vectorised form may differ from the
        one for what is left over at the end.
      when: for which drawn calls it holds.

    Raises:
      SpecError: ``args`` is empty or has a key that is no position or a value that is no axis.
    """

    args: Mapping[int, int]
    output: int | Sequence[int | None] | None = None
    exact: bool = False
    when: When = always

    def __post_init__(self) -> None:
        axes: list[Any] = [*self.args.values(), *self.axes(1)]
        if (
            not self.args
            or not all(_is_position(position) for position in self.args)
            or not all(_is_int(axis) for axis in axes if axis is not None)
        ):
            raise SpecError(
                "Permuted: args must map the position of an argument to an axis, and output be an "
                f"axis or None, or one of them for each leaf, not {dict(self.args)} and "
                f"{self.output!r}"
            )

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the arguments."""
        return tuple(self.args)

    def axes(self, leaves: int) -> tuple[int | None, ...]:
        """Return the axis of each of so many leaves of the output."""
        if self.output is None or isinstance(self.output, int):
            return (self.output,) * leaves
        return tuple(self.output)

    def __str__(self) -> str:
        axes = ", ".join(f"axis {axis} of argument {n}" for n, axis in self.args.items())
        return f"permuted along {axes}"


@dataclass(frozen=True)
class Relation:
    """A relation that a project defines: ``f(change(x))`` must be ``expect(f(x))``.

    Example: attention does not change where every key and value is there twice::

        def twice(arguments, rng):
            q, k, v = arguments.args
            args = (q, np.concatenate([k, k]), np.concatenate([v, v]))
            return dataclasses.replace(arguments, args=args)

        Relation("keys twice", twice)

    Attributes:
      name: for messages.
      change: from the drawn call and a generator, seeded with the call, to the other call.
      expect: from the kernel's outputs for the drawn call, a pytree of numpy arrays, and the
        *changed* call to what the kernel must give for that. Whatever ``change`` drew may be put
        into ``recipe`` of the changed call, or into its options. By default the same outputs.
        It is applied to the reference's outputs as well, which are float64, to see how errors
        spread.
      exact: whether the answer must be that to the bit.
      when: for which drawn calls it holds.

    Raises:
      SpecError: ``change`` or ``expect`` is no function.
    """

    name: str
    change: Callable[[Arguments, np.random.Generator], Arguments]
    expect: Callable[[Any, Arguments], Any] = lambda outputs, _: outputs
    exact: bool = False
    when: When = always

    def __post_init__(self) -> None:
        if not callable(self.change) or not callable(self.expect):
            raise SpecError(f"Relation {self.name!r}: change and expect must be functions")

    @property
    def positions(self) -> tuple[int, ...]:
        """None that need checking."""
        return ()

    def __str__(self) -> str:
        return self.name


#: Everything that ``KernelSpec.relations`` may hold.
AnyRelation = Linear | Permuted | Relation


def problem_with_relations(relations: Sequence[AnyRelation], count: int) -> str | None:
    """Say what is wrong with relations of a kernel of ``count`` positional arguments, or None."""
    for relation in relations:
        beyond = [position for position in relation.positions if position >= count]
        if beyond:
            return (
                f"relations: {type(relation).__name__} names argument {beyond[0]}, but its inputs "
                f"draw {count} positional arguments"
            )
    return None


def _arguments(positions: Sequence[int]) -> str:
    return f"argument{'s' if positions[1:] else ''} {', '.join(map(str, positions))}"


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_position(value: Any) -> bool:
    return _is_int(value) and value >= 0


# The spec itself.


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
        """Return whether a check is expected to fail.

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
      meshes: meshes to run on; the kernel and the reference are then called with ``mesh=``, too.
        Names of axes, ``"x"`` or ``"x y"``, let each example draw the number of devices: 2, 3, 4,
        and 6 or 8. ``{"x": (2, 4, 8)}`` draws one of these, for a kernel that is for no others,
        and ``{"x": 4}`` is one mesh. Each of several, ``({"x": 1}, "x y")``, has its own tests.
      checks: names of the checks to run; None for every check that applies.
      implementations: other implementations of the same function by name, with or without a
        kernel, called like it: with the options, and with the tuning that they take. The cross
        check compares them with it.
    """

    backends: Sequence[str] | None = None
    meshes: Axes | Sequence[Axes] = ()
    checks: Collection[str] | None = None
    implementations: Mapping[str, Callable[..., Any]] = field(
        default_factory=dict[str, Callable[..., Any]]
    )


@dataclass(frozen=True, kw_only=True)
class Marks:
    """Exceptions that a reviewer accepted, each with a reason.

    Attributes:
      tolerance: replaces the default judgement; rarely needed: a ``Tolerance``, a number for
        ``rtol`` and ``atol``, or fields by name (``{"rtol": 1e-3}``). A mapping has one of these
        for a dtype, a backend, or both: ``"bfloat16"``, ``"gpu"``, ``"gpu bfloat16"``; the most
        specific holds.
      xfail: expected failures by backend label (``"interpret"``, ``"tpu-interpret:v5e"``); those
        of a simulator hold on its hardware, too (see ``ExpectedFailure.hardware``).
      equivalent: mutants that compute the same.
      unreached: what of the kernel need not run on a simulator, each with the reason. A key is a
        condition as the source has it, a line (``"kernel.py:46"``, with as much of the path as one
        likes), the name of a reference or of a kernel; perhaps with a way: ``"step >= 6 true"``. No
        examples grow for it.
      redundant: waits, signals, barriers and fences that no mesh of the spec needs, each with the
        reason why they stay; for the check ``synchronization``. A key is a line of theirs or of the
        call of their function (``"kernel.py:46"``), or the name of a semaphore or barrier.
    """

    tolerance: AnyTolerance | Mapping[str, AnyTolerance] | None = None
    xfail: Mapping[str, ExpectedFailure] = field(default_factory=dict[str, ExpectedFailure])
    equivalent: Sequence[EquivalentMutant] = ()
    unreached: Mapping[str, str] = field(default_factory=dict[str, str])
    redundant: Mapping[str, str] = field(default_factory=dict[str, str])


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
        object.__setattr__(self, "meshes", mesh_axes(self.meshes))
        for problem in (*_problems(self), *_of_tolerance(self.tolerance)):
            raise SpecError(f"spec {self.name!r} in {self.file}: {problem}")

    @property
    def mesh_axes(self) -> Sequence[MeshAxes]:
        """The axes of each of its meshes, with one size or several; empty without meshes."""
        return cast("Sequence[MeshAxes]", self.meshes)

    @property
    def claimed(self) -> tuple[str, ...]:
        """The backends that the kernel claims to run on, as ``NAME`` or ``NAME:TARGET``."""
        if self.backends is not None:
            return tuple(self.backends)
        platforms = self.kernel if isinstance(self.kernel, Mapping) else ("tpu",)
        return tuple(name for platform in platforms for name in CLAIMED[platform])

    def claims(self, backend: str) -> bool:
        """Return whether the kernel claims a backend, given as ``NAME`` or ``NAME:TARGET``.

        A name alone stands for the default chip of its platform, as it does on the command line.
        """
        chosen = Label.of(backend)
        chips = [chosen.target] if chosen.target else DEFAULT_TARGETS.values()
        return chosen.name in self.claimed or any(
            f"{chosen.name}:{chip}" in self.claimed for chip in chips
        )

    def kernel_for(self, platform: str) -> Callable[..., Any]:
        """Return the function to run on ``platform`` (``"tpu"``, ``"gpu"`` or ``"any"``)."""
        if not isinstance(self.kernel, Mapping):
            return self.kernel
        return self.kernel.get(platform) or next(iter(self.kernel.values()))


def _of_tolerance(tolerance: Any) -> Iterator[str]:
    """Yield what is wrong with the tolerance of a spec."""
    if tolerance is None:
        return
    from pytest_pallas.judge.tolerance import as_tolerance

    try:
        as_tolerance(tolerance)
    except OptionError as error:
        yield str(error)


def _problems(spec: KernelSpec) -> list[str]:
    """Return the errors in the fields of ``spec``, without drawing or running."""
    kernels: Any = spec.kernel if isinstance(spec.kernel, Mapping) else {"tpu": spec.kernel}
    axes = list(spec.batch_axes)
    numbers: list[Any] = [axis for axis in axes if axis is not None]
    others: Mapping[str, Any] = spec.implementations
    no_relations = [one for one in spec.relations if not isinstance(one, _RELATIONS)]
    no_raises = [one for one in spec.raises if not isinstance(one, Raises)]  # pyright: ignore[reportUnnecessaryIsInstance]
    exact: Any = spec.exact
    ignored: Any = spec.ignored
    wrong = {
        "name must be a Python identifier, because test ids are built from it": (
            not _NAME.fullmatch(spec.name)
        ),
        f"kernel must map a platform of {sorted(CLAIMED)} to a function, "
        f"but its keys are {sorted(kernels)}": not kernels or set(kernels) - set(CLAIMED),
        "kernel must be a function, or a mapping from platform to function": (
            not all(map(callable, kernels.values()))
        ),
        f"reference must be a function in jnp, not {spec.reference!r}; without "
        "one there is nothing to compare with": not callable(spec.reference),
        "batch_axes must hold the number of an axis, from 0, or None for each positional "
        f"argument, and one axis at least, not {spec.batch_axes!r}": (
            any(not isinstance(axis, int) or axis < 0 for axis in numbers) or (axes and not numbers)
        ),
        "exact must be True, False or the largest integer that is exact, such as 2**20, not "
        f"{exact!r}": not isinstance(exact, int) or exact < 0,
        f"implementations must map names to functions, not {dict(others)!r}": (
            not all(map(callable, others.values()))
        ),
        "relations must be Linear(...), Permuted(...) or Relation(...), not "
        f"{[*no_relations, None][0]!r}": no_relations,
        "raises must hold Raises(args, error, match=...), not "
        f"{[*no_raises, None][0]!r}": no_raises,
        "batch_axes and meshes exclude each other: the kernel shards itself": axes and spec.meshes,
        "with meshes, inputs must be a function from the mesh to a strategy": (
            spec.meshes and not callable(spec.inputs)
        ),
        "typical must be a sequence of calls; with meshes, a function from the mesh to one": (
            callable(spec.typical) != bool(spec.meshes and spec.typical)
        ),
        "ignored must be a function that returns None or a bool array for each positional "
        f"argument, not {ignored!r}": ignored is not None and not callable(ignored),
        "inputs must be a hypothesis strategy, such as strategies.arrays(...)": (
            not spec.meshes and not hasattr(spec.inputs, "example")
        ),
    }
    marks = {
        "unreached": (spec.unreached, "a condition, line or name", "it need not run"),
        "redundant": (spec.redundant, "a line or name", "it stays"),
    }
    for name, (reasons, keys, why) in marks.items():
        wrong |= _problems_with_reasons(name, reasons, keys, why)
    in_meshes = problem_with_meshes(spec.meshes)
    problems = [problem for problem, applies in wrong.items() if applies]
    return problems if in_meshes is None else [in_meshes, *problems]


def _problems_with_reasons(name: str, reasons: Any, keys: str, why: str) -> dict[str, Any]:
    """Return what may be wrong with a mapping from keys to reasons, and whether it is."""
    if not isinstance(reasons, Mapping):
        return {f"{name} must map {keys} to a reason, not {reasons!r}": True}
    pairs: Mapping[Any, Any] = reasons
    return {
        f"{name} must map {keys}, such as 'k.py:46', to the reason why {why}, not {key!r} to "
        f"{reason!r}": not all(isinstance(text, str) and text.strip() for text in (key, reason))
        for key, reason in pairs.items()
    }
