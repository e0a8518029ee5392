"""``dtype``: the kernel returns what the reference returns, apart from the values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax

from pytest_pallas.backends import Call
from pytest_pallas.backends.tracing import abstract, apply, jitted, split
from pytest_pallas.checks.check import declare_check
from pytest_pallas.checks.context import CheckContext, CheckResult, run
from pytest_pallas.errors import MismatchError


@declare_check(
    "dtype",
    asks="does it return the dtypes, shapes and pytree of the reference?",
    executes=False,
    tries_mutants=False,
)
def dtype(context: CheckContext) -> CheckResult:
    """Compare pytrees, shapes, dtypes and weak types, by tracing: nothing is executed.

    The answer of ``forward`` is compared as numpy arrays by their paths, which tell neither a list
    from a tuple nor a weakly typed scalar from a float32 one. Callers see both: a weak type lets
    bfloat16 stay bfloat16 where a strong float32 does not, and ``lax.scan`` wants its carry back
    as it was.

    A kernel that cannot be jitted is run instead, and its weak types are not known.

    Raises:
      MismatchError: the two differ; the message names every difference.
    """
    assert context.reference is not None
    wanted = _of_reference(context.reference, context)
    if not context.jit:
        outcome = run(context, context.kernel, context.arguments.args)
        returned, seconds = outcome.values, outcome.seconds
    else:
        returned, seconds = _of_kernel(context)
    differences = list(_differences(returned, wanted, context))
    if differences:
        raise MismatchError(
            "the kernel does not return what the reference does:\n  " + "\n  ".join(differences)
        )
    return CheckResult(comparisons=(), seconds=seconds)


def _of_kernel(context: CheckContext) -> tuple[Any, float]:
    """What the kernel returns on the context's backend, as ``jax.eval_shape`` says, and seconds."""
    seen: list[Any] = []

    def declare(*args: Any, **options: Any) -> tuple[()]:
        # The trace is the one that forward's run of the same call has left in jit's cache.
        seen.append(_shapes(context.kernel, args, options))
        return ()

    outcome = run(context, declare, context.arguments.args, jit=False, races=False)
    return seen[0], outcome.seconds


def _of_reference(reference: Callable[..., Any], context: CheckContext) -> Any:
    """What the reference returns; if it cannot be traced, by running it."""
    args, options = context.arguments.args, context.arguments.options
    with jax.default_device(jax.devices("cpu")[0]):
        try:
            return _shapes(reference, args, options)
        except Exception:  # numpy, or Python that looks at values
            return apply(*split(Call(function=reference, args=args, options=options)))


def _shapes(function: Callable[..., Any], args: Any, options: Any) -> Any:
    call = Call(function=function, args=args, options=options)
    return jitted().eval_shape(*abstract(call))


def _differences(returned: Any, wanted: Any, context: CheckContext) -> Iterator[str]:
    """Each difference in words."""
    found, expected = jax.tree.structure(returned), jax.tree.structure(wanted)
    if found != expected:
        yield f"structure: {_tree(found)}, the reference {_tree(expected)}"
        return
    for (path, mine), (_, theirs) in zip(
        jax.tree_util.tree_leaves_with_path(returned),
        jax.tree_util.tree_leaves_with_path(wanted),
        strict=True,
    ):
        one, other = _words(mine, context), _words(theirs, context)
        if one != other:
            yield f"{jax.tree_util.keystr(path) or 'output'}: {one}, the reference {other}"


def _words(leaf: Any, context: CheckContext) -> str:
    """A leaf's type: ``float32[8, 128]``, ``weakly typed float32[]``; its shape alone if asked."""
    shape = f"[{', '.join(map(str, leaf.shape))}]"
    if not context.check_dtype:
        return shape
    weak = context.jit and getattr(leaf, "weak_type", False)
    return f"{'weakly typed ' if weak else ''}{leaf.dtype}{shape}"


def _tree(structure: Any) -> str:
    return str(structure).removeprefix("PyTreeDef(").removesuffix(")")
