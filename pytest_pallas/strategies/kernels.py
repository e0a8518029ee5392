"""``kernel_args``: the calls of a spec, for a test of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hypothesis.strategies import SearchStrategy

from pytest_pallas.errors import SpecError
from pytest_pallas.strategies.arguments import Arguments, as_arguments


class Spec(Protocol):
    """What is used of a ``KernelSpec``, which this layer does not know."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def inputs(self) -> Any:
        """A strategy, or a function from a mesh to one."""
        ...

    @property
    def meshes(self) -> Sequence[Mapping[str, int]]:
        """The axes of each mesh that it runs on."""
        ...


def kernel_args(spec: Spec, *, mesh: Any = None) -> SearchStrategy[Arguments]:
    """A strategy for the calls of a spec, for use in a test of one's own.

    Example::

        @given(call=kernel_args(SPEC))
        def test_is_symmetric(pallas_run, call):
            out = pallas_run(SPEC.kernel, *call.args, **call.options, **call.tuning)

    Args:
      spec: a ``KernelSpec``.
      mesh: the ``jax.sharding.Mesh`` that the call is for. Specs with ``meshes`` need one, with the
        axes of one of these; others take none.

    Draws ``Arguments``: what the suite draws for the spec.

    Raises:
      SpecError: ``spec`` is no spec, or ``mesh`` does not go with it.
    """
    missing = [name for name in ("name", "inputs", "meshes") if not hasattr(spec, name)]
    if missing or isinstance(spec, type):
        raise SpecError(f"kernel_args takes a KernelSpec, not {spec!r:.80}")
    if not spec.meshes:
        if mesh is not None:
            raise SpecError(f"kernel_args: the spec {spec.name!r} has no meshes; drop mesh=")
        return _calls(spec, spec.inputs)
    wanted = " or ".join(str(dict(each)) for each in spec.meshes)
    if mesh is None:
        raise SpecError(
            f"kernel_args: the inputs of spec {spec.name!r} depend on a mesh, such as {wanted}; "
            "give mesh="
        )
    axes = getattr(mesh, "axis_names", None)
    if axes is None or not any(set(axes) == set(each) for each in spec.meshes):
        raise SpecError(
            f"kernel_args: the spec {spec.name!r} takes a jax.sharding.Mesh with axes as in "
            f"{wanted}, not {mesh!r:.80}"
        )
    return _calls(spec, spec.inputs(mesh))


def _calls(spec: Spec, inputs: Any) -> SearchStrategy[Arguments]:
    if not isinstance(inputs, SearchStrategy):
        raise SpecError(
            f"kernel_args: inputs of spec {spec.name!r} must be a strategy, not {inputs!r:.80}"
        )
    return inputs.map(as_arguments)
