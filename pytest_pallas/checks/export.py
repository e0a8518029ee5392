"""``export``: the kernel can be exported with ``jax.export``, and its output stays bitwise equal.

On backends that compile, the exported program is deserialized, compiled and called. Simulators
compile nothing: the program is traced again, lowered for the simulated chip with an opaque call in
place of each kernel, serialized and deserialized; then the simulator runs the trace. The compiling
backends check whether the compiler accepts the kernels themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.export
from jax.extend.core import jaxpr_as_fun

from pallas_sim.errors import KernelError
from pallas_sim.traces import equations_inside, is_reference, open_jaxpr, source_line
from pytest_pallas.backends.execution import brief
from pytest_pallas.backends.hardware import CUSTOM_CALLS
from pytest_pallas.backends.protocol import Backend, Call
from pytest_pallas.backends.rewriting import closed_with, equations_of, with_kernels
from pytest_pallas.backends.tracing import QUICK, abstract, apply, on_host, split
from pytest_pallas.checks import declare_check
from pytest_pallas.checks.context import CheckContext, CheckResult, call, run
from pytest_pallas.checks.metamorphic import identical
from pytest_pallas.errors import NotApplicableError
from pytest_pallas.spec import KernelSpec

#: The name of a kernel in a program that is lowered without its kernels.
_OPAQUE = "pallas_kernel"

#: Primitives that call Python on the host.
_CALLBACKS = frozenset({"pure_callback", "io_callback"})

#: Part of JAX's error for a callback in a program for another platform than that of this process.
_OTHER_PLATFORM = "is different from the lowering platform"


@dataclass(frozen=True)
class RoundTrip:
    """A function that is exported, serialized, deserialized and called. It returns leaves.

    ``platform`` is the target of the export; None is that of the default device.
    """

    function: Callable[..., Any]
    platform: str | None = None

    def __call__(self, *args: Any, **options: Any) -> list[Any]:
        """Export the function for these arguments, and call the deserialized program."""
        call = Call(function=self.function, args=args, options=options)
        leaves, shapes = _flat(call)
        # JAX promises no stable format for the kernel inside; it is deserialized at once.
        names = [name for names in CUSTOM_CALLS.values() for name in names]
        exported = _exported(jax.jit(leaves), shapes, self.platform, names)
        # Interpreted kernels are compiled with the usual options: others could change the bits.
        quick = dict(QUICK) if self.platform is None else None
        return list(jax.jit(exported.call, compiler_options=quick)(*split(call)[1]))


@dataclass(frozen=True)
class SimulatedTrip:
    """A function that is exported and deserialized without its kernels; then its trace is called.

    Attributes:
      function: the function.
      platform: the target of the export.
    """

    function: Callable[..., Any]
    platform: str

    def __call__(self, *args: Any, **options: Any) -> list[Any]:
        """Trace the function again, export the trace, and call it.

        Raises:
          KernelError: it cannot be exported.
        """
        call = Call(function=self.function, args=args, options=options)
        leaves, shapes = _flat(call)
        traced = jax.make_jaxpr(leaves)(*shapes)
        around = with_kernels(open_jaxpr(traced)[0], lambda eqn, _: _opaque(eqn))
        lowered = jaxpr_as_fun(closed_with(traced, around))
        exported = _exported(jax.jit(lambda *arrays: lowered(*arrays)), shapes, self.platform)
        _same_types(exported, traced)
        # Under jit, so that Python numbers have their dtypes.
        run = jaxpr_as_fun(traced)
        return list(jax.jit(lambda *arrays: run(*arrays))(*on_host(call)[1]))


def _flat(call: Call) -> tuple[Callable[..., Any], list[Any]]:
    """Return a function from a call's arrays to the leaves of its output, and its shapes."""
    static, shapes = abstract(call)

    def leaves(*arrays: Any) -> tuple[Any, ...]:
        return tuple(jax.tree.leaves(apply(static, list(arrays))))

    return leaves, shapes


def _exported(
    function: Any, shapes: Sequence[Any], platform: str | None, custom_calls: Sequence[str] = ()
) -> jax.export.Exported:
    """Export, serialize and deserialize a jitted function.

    Raises:
      KernelError: one of these steps fails.
    """
    check = jax.export.DisabledSafetyCheck.custom_call
    exporting = jax.export.export(
        function,
        platforms=None if platform is None else (platform,),
        disabled_checks=[check(name) for name in (*custom_calls, _OPAQUE)],
    )
    try:
        return jax.export.deserialize(exporting(*shapes).serialize())
    except Exception as error:
        reason = f"{type(error).__name__}: {brief(str(error))}"
        if _OTHER_PLATFORM in str(error):
            reason = "it has a callback to Python (jax.pure_callback, io_callback or debug.print)"
        raise _refused(reason) from error


def _refused(reason: str) -> KernelError:
    return KernelError(
        f"the kernel runs, but jax.export rejects it: {reason}. An exported program runs in "
        "another process, so it cannot call back to Python on the host."
    )


def _opaque(eqn: Any) -> Any:
    """Return an opaque call in place of a kernel, which JAX lowers without its body.

    Raises:
      KernelError: the kernel calls back to Python.
    """
    for inner in equations_inside(eqn):
        if inner.primitive.name in _CALLBACKS:
            raise _refused(
                f"it has a callback to Python, {inner.primitive.name} at "
                f"{source_line(inner) or '?'}"
            )
    refs = [at for at, atom in enumerate(eqn.invars) if is_reference(atom.aval)]
    changed = [eqn.invars[at].aval for at in refs]
    avals = [*(var.aval for var in eqn.outvars), *changed]
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    opaque = jax.ffi.ffi_call(_OPAQUE, shapes, has_side_effect=True)

    def call(*operands: Any) -> Any:
        """Return the opaque call, with an effect on every ref argument."""
        values = [operand[...] if at in refs else operand for at, operand in enumerate(operands)]
        results = opaque(*values)
        for at, value in zip(refs, results[len(eqn.outvars) :], strict=True):
            operands[at][...] = value
        return results[: len(eqn.outvars)]

    [new], _ = equations_of(jax.jit(call) if refs else call, eqn.invars, eqn)
    return new.replace(outvars=eqn.outvars)


def _same_types(exported: jax.export.Exported, traced: Any) -> None:
    """Raise unless the deserialized program has the argument and result types of the trace."""
    expected, actual = (
        [f"{aval.dtype}{list(aval.shape)}" for aval in (*program.in_avals, *program.out_avals)]
        for program in (traced, exported)
    )
    if actual != expected:
        raise KernelError(
            f"the exported kernel has different types: {', '.join(actual)} instead of "
            f"{', '.join(expected)} (arguments, then results)"
        )


def requires_backend(backend: Backend) -> str | None:
    """The exported program must contain the code that runs a kernel."""
    if backend.kind == "interpreting" and backend.platform != "any":
        return (
            f"{backend.name} runs kernels by callbacks to the host, which JAX cannot serialize; "
            "kernels on interpret and hardware can be exported"
        )
    return None


def requires_spec(spec: KernelSpec) -> str | None:
    """The exported program is called on one device."""
    if spec.meshes:
        return "the kernel runs on a mesh, and the check calls the exported kernel on one device"
    return None


@declare_check(
    "export",
    asks="does jax.export keep the output bitwise equal?",
    requires_spec=requires_spec,
    requires_backend=requires_backend,
    example_fraction=0.125,
    tries_mutants=False,  # they are made in what jit has traced
)
def export(context: CheckContext) -> CheckResult:
    """Export and serialize the kernel, deserialize and call it, and compare bit for bit.

    A simulator runs the exported trace, not the deserialized program.

    Raises:
      NotApplicableError: the kernel cannot be jitted, or the backend cannot export kernels.
    """
    if not context.settings.jit:
        raise NotApplicableError(
            "the export check needs a kernel that can be jitted, and jit=False says that this one "
            "cannot"
        )
    reason = requires_backend(context.backend) or _not_simulated(context)
    if reason is not None:
        raise NotApplicableError(reason)
    direct = run(context, context.kernel, context.arguments.args)
    platform = {"gpu": "cuda"}.get(context.backend.platform, context.backend.platform)
    if context.backend.kind == "simulating":
        trip = SimulatedTrip(context.kernel, platform)
    else:
        trip = RoundTrip(
            context.kernel, None if context.backend.kind == "interpreting" else platform
        )
    again = run(context, trip, context.arguments.args, jit=False)
    outputs = jax.tree.unflatten(jax.tree.structure(direct.values), again.values)
    suffix = " of the exported kernel"
    comparisons = identical(context, outputs, direct.values, suffix, change="after jax.export")
    return CheckResult(comparisons=comparisons, outcome=direct)


def _not_simulated(context: CheckContext) -> str | None:
    """Return why a simulator runs the call on an interpreter, which cannot export it; or None."""
    lacks: Any = getattr(context.backend, "lacks", None)
    try:
        missing = lacks and lacks(call(context, context.kernel, context.arguments.args))
    except Exception:  # running the kernel raises the same error
        return None
    return missing and f"{missing}, and an interpreted kernel cannot be exported"
