"""``dtype``: the kernel's outputs have the types and structure of the reference's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax

from pytest_pallas.backends.protocol import Call
from pytest_pallas.backends.tracing import abstract, apply, jitted, split
from pytest_pallas.checks import declare_check
from pytest_pallas.checks.context import CheckContext, CheckResult, run
from pytest_pallas.errors import MismatchError


@declare_check(
    "dtype",
    asks="does it return the dtypes, shapes and pytree of the reference?",
    executes=False,
    tries_mutants=False,
)
def dtype(context: CheckContext) -> CheckResult:
    """Compare pytrees, shapes, dtypes and weak types by tracing, without execution.

    ``forward`` compares numpy arrays by their paths, which do not distinguish a weakly typed scalar
    from a float32 one, nor a dataclass from another one. Callers see both: a weak type lets
    bfloat16 stay bfloat16 where a strong float32 does not, and ``lax.scan`` needs a carry of the
    same type. A list and a tuple are the same here: ``pallas_call`` returns what ``out_shape`` is,
    and callers unpack either.

    A kernel that cannot be jitted is run instead; then its weak types are not known.

    Raises:
      MismatchError: the two differ; the message lists every difference.
    """
    assert context.reference is not None
    expected = _of_reference(context.reference, context)
    if context.settings.jit:
        returned = _of_kernel(context)
    else:
        returned = run(context, context.kernel, context.arguments.args).values
    differences = list(_differences(returned, expected, context))
    if differences:
        raise MismatchError(
            "the kernel and the reference return different types:\n  " + "\n  ".join(differences)
        )
    return CheckResult(comparisons=())


def _of_kernel(context: CheckContext) -> Any:
    """Return the types of the kernel's outputs on the backend, as ``jax.eval_shape`` has them."""
    seen: list[Any] = []

    def declare(*args: Any, **options: Any) -> tuple[()]:
        # The trace is in jit's cache, from the run of the same call in ``forward``.
        seen.append(_shapes(context.kernel, args, options))
        return ()

    run(context, declare, context.arguments.args, jit=False, races=False)
    return seen[0]


def _of_reference(reference: Callable[..., Any], context: CheckContext) -> Any:
    """Return the types of the reference's outputs; a reference that cannot be traced is run."""
    args, options = context.arguments.args, context.arguments.options
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        try:
            return _shapes(reference, args, options)
        except Exception:  # numpy, or Python code that reads values
            return apply(*split(Call(function=reference, args=args, options=options)))


def _shapes(function: Callable[..., Any], args: Any, options: Any) -> Any:
    call = Call(function=function, args=args, options=options)
    static, arrays = abstract(call)
    return jitted(static).eval_shape(arrays)


def _differences(returned: Any, expected: Any, context: CheckContext) -> Iterator[str]:
    """Yield each difference in words."""
    structures = jax.tree.structure(returned), jax.tree.structure(expected)
    if not _alike(*structures):
        own, other = (str(tree).removeprefix("PyTreeDef(").removesuffix(")") for tree in structures)
        yield f"structure: {own}, the reference {other}"
        return
    for (path, mine), (_, theirs) in zip(
        jax.tree_util.tree_leaves_with_path(returned),
        jax.tree_util.tree_leaves_with_path(expected),
        strict=True,
    ):
        one, other = _type_text(mine, context), _type_text(theirs, context)
        if one != other:
            yield f"{jax.tree_util.keystr(path) or 'output'}: {one}, the reference {other}"


_SEQUENCES: tuple[Any, ...] = (list, tuple)


def _alike(one: Any, other: Any) -> bool:
    """Return whether two tree structures are equal, but for lists in place of tuples."""
    node, twin = one.node_data(), other.node_data()
    if None in (node, twin):
        return one == other
    if node != twin and not (node[0] in _SEQUENCES and twin[0] in _SEQUENCES):
        return False
    children, others = one.children(), other.children()
    return len(children) == len(others) and all(map(_alike, children, others))


def _type_text(leaf: Any, context: CheckContext) -> str:
    """Return a leaf's type: ``float32[8, 128]``, ``weakly typed float32[]``; or its shape only."""
    shape = f"[{', '.join(map(str, leaf.shape))}]"
    if not context.check_dtype:
        return shape
    weak = context.settings.jit and getattr(leaf, "weak_type", False)
    return f"{'weakly typed ' if weak else ''}{leaf.dtype}{shape}"
