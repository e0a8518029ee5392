"""The types of the fixtures that are called, for annotations: ``pallas_check: PallasCheck``.

pytest gives a test its fixtures by name, so an editor knows nothing of them. With the annotation it
completes their arguments, and a type checker checks them.

The keyword arguments of ``pallas_check`` and ``pytest_pallas.check`` are declared here, once:
their types in ``CheckKeywords``, their defaults in ``DEFAULTS``. ``spelled_out`` makes a signature
of both.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack, overload, runtime_checkable

from pytest_pallas.spec import CallProperties

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from pytest_pallas.candidates.verdicts import Report
    from pytest_pallas.checks import Check
    from pytest_pallas.compile.service import CompileReport
    from pytest_pallas.judge.tolerance import AnyTolerance
    from pytest_pallas.spec import AnyRelation, KernelSpec, Raises

#: Names of the backends that a kernel is compared with, or a function to run there by name.
type Peers = Sequence[str] | Mapping[str, Callable[..., Any]]


class SpecKeywords(TypedDict, total=False):
    """The keyword arguments of ``pallas_check`` for a spec, which has its own properties."""

    options: Mapping[str, Any] | None
    tuning: Mapping[str, Any] | None
    checks: str | Check | Sequence[str | Check]
    mesh: Mesh | Mapping[str, int] | None


class CheckKeywords(SpecKeywords, total=False):
    """The keyword arguments of ``pallas_check`` for a function, besides ``reference``."""

    exact: bool | int
    differentiable: Sequence[int]
    batch_axes: Sequence[int | None]
    relations: Sequence[AnyRelation]
    implementations: Mapping[str, Callable[..., Any]]
    peers: Peers
    ignored: Callable[..., Any] | None
    raises: Sequence[Raises]
    tolerance: AnyTolerance | Mapping[str, AnyTolerance] | None
    claimed: Sequence[str]
    deterministic: bool
    nan_ok: bool
    check_dtype: bool
    jit: bool
    name: str


#: The default of each of ``CheckKeywords``; properties have theirs.
DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys(("options", "tuning", "mesh")),
    **dict.fromkeys(("checks", "peers"), ()),
    "implementations": {},
    "name": "",
    **{field.name: field.default for field in dataclasses.fields(CallProperties)},
}


def spelled_out[F: Callable[..., Any]](
    typed: type, defaults: Mapping[str, Any]
) -> Callable[[F], F]:
    """Show the arguments that ``**keywords: Unpack[...]`` stands for in a signature.

    Args:
      typed: the ``TypedDict`` of these arguments.
      defaults: the default of each.
    """

    def shown(function: F) -> F:
        signature = inspect.signature(function)
        *own, rest = signature.parameters.values()
        assert rest.kind is rest.VAR_KEYWORD
        stated = [
            inspect.Parameter(name, rest.KEYWORD_ONLY, default=defaults[name], annotation=kind)
            for name, kind in typed.__annotations__.items()
        ]
        vars(function)["__signature__"] = signature.replace(parameters=[*own, *stated])
        return function

    return shown


# Checkable when run, so that annotations can be checked by beartype and the like.
@runtime_checkable
class PallasRun(Protocol):
    """The type of the fixture ``pallas_run``."""

    def __call__(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        options: Mapping[str, Any] | None = None,
        tuning: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> Any:
        """Run a kernel on the backend of the test.

        Args:
          function: calls the kernel. What it says about ``interpret=`` is overruled.
          *args: its positional arguments: arrays, or pytrees of them. One ``Arguments`` stands for
            all of a call.
          options: keyword arguments of the kernel, as ``pallas_check`` takes them.
          tuning: likewise; there is no reference here, so they are more of the same.
          **keywords: its keyword arguments, passed untraced.

        Returns:
          What it returned, as numpy arrays. On a compiling backend the kernel is compiled, and the
          rest of the test skipped. Of several processes, outputs that are spread over them are
          what this one holds: ``.shards``, and ``.gather()`` for the whole.

        Raises:
          KernelError: the kernel raised, or a simulator found it wrong.
          TypeError: the kernel takes no such keyword argument, or it is given twice.
        """


@runtime_checkable
class PallasCheck(Protocol):
    """The type of the fixture ``pallas_check``."""

    @overload
    def __call__(
        self,
        kernel: Callable[..., Any],
        /,
        *args: Any,
        reference: Callable[..., Any] | None,
        **keywords: Unpack[CheckKeywords],
    ) -> Any: ...

    @overload
    def __call__(
        self, kernel: KernelSpec, /, *args: Any, **keywords: Unpack[SpecKeywords]
    ) -> Any: ...

    @spelled_out(CheckKeywords, DEFAULTS)
    def __call__(
        self,
        kernel: Callable[..., Any] | KernelSpec,
        /,
        *args: Any,
        reference: Callable[..., Any] | None = None,
        **keywords: Unpack[CheckKeywords],
    ) -> Any:
        """Verify a kernel against its reference, or by a spec, on the backend of the test.

        ``pallas_check(fn, *args, reference=jnp_fn)`` checks one call. The kernel's error against
        the reference in float64 may be at most twice that of the reference in the kernel's own
        dtypes, plus a few ulps.

        ``pallas_check(SPEC)`` verifies a ``KernelSpec``: every check that applies, on the examples
        that its items draw. ``pallas_check(SPEC, *args)`` asks its checks about one call, which may
        also be one that its strategy drew. The spec says everything else. On a backend that it does
        not claim the test is skipped.

        Args:
          kernel: a function, called ``kernel(*args, **options, **tuning)``; or a spec.
          *args: positional arguments: arrays of any shapes and dtypes, pytrees of them, anything
            else. One ``Arguments`` stands for all of a call.
          reference: the same function in jnp, called ``reference(*args, **options)``. None will do
            on a compiling backend, and nowhere else.
          options: keyword arguments of kernel and reference, such as ``{"causal": True}``.
          tuning: keyword arguments of the kernel only, such as ``{"block_m": 64}``.
          checks: names of checks and sanitizers. By default those of the test's mark, or
            ``forward``; of a spec, all that apply. ``"all"`` leaves out what does not apply, and
            ``oracle-strength``, which needs many calls.
          mesh: the mesh to run on, or its sizes by axis; kernel and reference get it as ``mesh=``.
          exact: True if small integers held in floats must give a bitwise equal answer. A number
            for integers up to that size.
          differentiable: positions of the arguments to differentiate by, for ``gradient``.
          batch_axes: for ``sharding``, as in ``KernelSpec``.
          relations: for ``linearity``, ``permutation`` and ``relation``, as in ``KernelSpec``.
          implementations: for ``cross``, other implementations by name, as in ``KernelSpec``.
          peers: for ``cross``, names of other backends; or a mapping from these to the function
            that runs there.
          ignored: for ``padding``, as in ``KernelSpec``.
          raises: for ``raises``, as in ``KernelSpec``.
          tolerance: replaces the default judgement: a ``Tolerance``, a number for ``rtol`` and
            ``atol``, or fields by name. A mapping has one of these for a dtype, a backend, or
            both, such as ``"bfloat16"``, ``"gpu"`` or ``"gpu bfloat16"``.
          claimed: for ``grid``, the backends that the kernel is written for; see ``KernelSpec``.
          deterministic: False if two right runs may differ in their last bits.
          nan_ok: whether NaN is a right answer for finite inputs.
          check_dtype: False if the kernel may return other dtypes than the reference.
          jit: False to call the kernel as it is, because it needs the values of its arguments.
          name: what to call the kernel in reports; by default its own name.

        Returns:
          What the kernel returned, as numpy arrays; on a compiling backend, where nothing is
          executed, the ``CompileReport``; None for a spec without arguments.

        Raises:
          MismatchError: the answer is wrong.
          KernelError: the kernel raised, or a simulator or compiler found it wrong.
          NotApplicableError: a check that is named does not apply.
          OptionError: what is given does not fit together.
          TypeError: there is no such keyword argument, or no reference.
        """


@runtime_checkable
class PallasCompile(Protocol):
    """The type of the fixture ``pallas_compile``."""

    def __call__(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        target: str,
        options: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> CompileReport:
        """Compile a kernel for a chip, whatever ``--pallas-backend`` says.

        Args:
          function: calls the kernel.
          *args: its positional arguments. A ``jax.ShapeDtypeStruct`` may stand for an array.
          target: the chip: v4, v5e, v5p, v6e, tpu7x, a100, h100, h200 or b200.
          options: keyword arguments, passed untraced.
          name: what to call the kernel in reports; by default its own name.

        Returns:
          What the machine code costs. Without the compiler the test is skipped, or fails under
          ``--pallas-missing=error``.

        Raises:
          CompileError: the compiler refuses the kernel.
          CompilerFailedError: the compiler hung, crashed or took too much memory.
          OptionError: there is no such chip.
        """
        ...


@runtime_checkable
class PallasBenchmark(Protocol):
    """The type of the fixture ``pallas_benchmark``."""

    def __call__(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        baseline: Callable[..., Any] | None = None,
        options: Mapping[str, Any] | None = None,
        tuning: Mapping[str, Any] | None = None,
        rounds: int = 10,
        warmup: int = 3,
    ) -> Any:
        """Time a kernel by pytest-benchmark, compiled before, with its arrays on the device.

        Args:
          function: calls the kernel.
          *args: its positional arguments: arrays, or pytrees of them.
          baseline: the same function in jnp, timed beside it, jitted, without its own entry.
          options: keyword arguments of both, such as ``{"causal": True}``.
          tuning: keyword arguments of the kernel only.
          rounds: how many calls are timed.
          warmup: how many calls are made before.

        Returns:
          What the kernel returned, as numpy arrays. On a compiling backend the test is skipped.

        Raises:
          KernelError: the kernel raised.
        """


@runtime_checkable
class PallasMesh(Protocol):
    """The type of the fixture ``pallas_mesh``."""

    def __call__(self, **axes: int) -> Mesh:
        """Make a mesh over the devices of the backend, simulated or not.

        Args:
          **axes: how many devices along each axis: ``pallas_mesh(x=2, y=4)``. Without any, those
            of the test's mark, ``@pytest.mark.pallas_mesh(x=4)``.

        Returns:
          The mesh. With too few devices the test is skipped, or fails under
          ``--pallas-missing=error``.

        Raises:
          DeviceError: a size is wrong, or there are no axes at all.
        """
        ...


@runtime_checkable
class PallasVerify(Protocol):
    """The fixture ``pallas_verify``: the arguments are those of ``pytest_pallas.verify``."""

    def __call__(self, kernel: Any, /, *args: Any, **options: Any) -> Report:
        """Judge a kernel, and fail unless it passes."""
        ...
