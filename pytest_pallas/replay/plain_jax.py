"""The failing call in plain JAX, as comments of a script: for a bug report to JAX."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_pallas.checks.verdict import Failure
from pytest_pallas.numerics import is_complex
from pytest_pallas.oracle.expected import flatten
from pytest_pallas.replay.literals import Writer
from pytest_pallas.replay.places import interpreter_of, without_mesh

#: What people call the modules that interpreters take their parameters from.
_ALIASES = {
    "jax.experimental.pallas.tpu": "pltpu",
    "jax.experimental.pallas.mosaic_gpu": "plgpu",
}


def in_plain_jax(failure: Failure) -> Iterator[str]:
    """The lines: the kernel, the reference, and the largest difference; none on a mesh."""
    context = failure.context
    if context.backend.kind == "compiling" or without_mesh(context.kernel)[1] is not None:
        return
    options, tuning = context.arguments.options, context.arguments.tuning
    words = "*args" + (", **options" if options else "")
    call = f"actual = kernel({words}{', **tuning' if tuning else ''})"
    finding = failure.finding
    values = () if finding is None or finding.outcome is None else finding.outcome.values
    kind = "complex" if any(is_complex(leaf.dtype) for _, leaf in flatten(values)) else "float"
    yield ""
    yield "# For a bug report to JAX: the same call without pytest-pallas."
    interpreter = interpreter_of(context.backend)
    if interpreter is None:
        yield f"# {call}"
    else:
        written = Writer().write(interpreter.parameters)
        for module, alias in _ALIASES.items():
            written = written.replace(f"{module}.", f"{alias}.")
        yield "# from jax.experimental.pallas import tpu as pltpu"
        if interpreter.platform == "gpu":
            yield "# from jax.experimental.pallas import mosaic_gpu as plgpu"
        yield f"# with pltpu.force_tpu_interpret_mode({written}):"
        yield f"#     {call}"
    yield f"# wanted = reference({words})"
    yield "# for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(wanted)):"
    difference = f"np.asarray(one, {kind}) - np.asarray(other, {kind})"
    yield f'#     print("largest difference", np.abs({difference}).max())'
