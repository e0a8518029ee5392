"""Which operands of a kernel's equation are what: indices, semaphores, devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pallas_sim.compat.places import is_indexer
from pallas_sim.transforms import Operand


def inner_operands(eqn: Any, jaxpr: Any) -> Sequence[Any] | None:
    """The operands of an equation that become the variables of a jaxpr inside, in their order.

    None where it is not known. The variables are ``inner_variables``.
    """
    name, operands = eqn.primitive.name, list(eqn.invars)
    variables = inner_variables(eqn, jaxpr)
    if name == "cond":
        operands = operands[1:]
    elif name == "while":
        conditions, constants = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        carried = operands[conditions + constants :]
        condition = getattr(eqn.params["cond_jaxpr"], "jaxpr", None)
        if jaxpr is condition:
            operands = operands[:conditions] + carried
        else:
            operands = operands[conditions : conditions + constants] + carried
    return operands if len(operands) == len(variables) else None


def inner_variables(eqn: Any, jaxpr: Any) -> Sequence[Any]:
    """The variables of a jaxpr inside an equation that stand for operands of the equation."""
    if eqn.primitive.name == "run_scoped":  # what it allocates comes after what it closes over
        return [*jaxpr.constvars, *jaxpr.invars][: len(eqn.invars)]
    return list(jaxpr.invars)


def indexed(eqn: Any) -> tuple[Any, list[Any], list[Any]] | None:
    """The ref, the other operands, and the indices of a ``get``, ``swap`` or ``addupdate``.

    The indices are those of the last transform, an operand, or an object with ``start``, ``size``
    and ``stride`` each, with the size of the axis: pairs. None where it is not indexed so.
    """
    count = {"get": 1, "swap": 2, "addupdate": 2}.get(eqn.primitive.name)
    if count is None or "tree" not in eqn.params or "has_mask" in eqn.params:
        return None  # those of SparseCores are others
    transforms = eqn.params["tree"].unflatten(eqn.invars[count:])
    if not isinstance(transforms, tuple) or not transforms:
        return None
    last: Any = transforms[-1]  # pyright: ignore[reportUnknownVariableType]
    if not is_indexer(last):
        return None
    pairs: list[Any] = list(zip(last.indices, last.shape, strict=True))
    return eqn.invars[0], list(eqn.invars[1:count]), pairs


def reindexed(eqn: Any, axis: int, index: Any) -> Any:
    """The equation with another index for an axis; see ``indexed``."""
    import dataclasses

    import jax

    count = {"get": 1, "swap": 2, "addupdate": 2}[eqn.primitive.name]
    transforms = eqn.params["tree"].unflatten(eqn.invars[count:])
    last: Any = transforms[-1]
    indices = list(last.indices)
    old = indices[axis]
    if hasattr(old, "start"):
        index = dataclasses.replace(old, start=index)
    indices[axis] = index
    changed = (*transforms[:-1], dataclasses.replace(last, indices=tuple(indices)))
    leaves, structure = jax.tree.flatten(changed)
    return eqn.replace(
        invars=[*eqn.invars[:count], *leaves], params={**eqn.params, "tree": structure}
    )


def operand_groups(eqn: Any) -> Mapping[str, list[int]]:
    """Which operands of a DMA, a signal or a wait are what: positions by name.

    Names are ``source``, ``target``, ``target_semaphore``, ``source_semaphore`` and ``device`` of a
    ``dma_start`` or ``dma_wait``; ``semaphore``, ``value`` and ``device`` of the others.
    """
    names = {
        "dma_start": ("source", "target", "target_semaphore", "source_semaphore", "device"),
        "dma_wait": ("source", "target", "target_semaphore", "source_semaphore", "device"),
        "semaphore_signal": ("semaphore", "transforms", "value", "device", "core"),
        "semaphore_wait": ("semaphore", "transforms", "value", "decrement"),
    }.get(eqn.primitive.name)
    structure = eqn.params.get("tree", eqn.params.get("args_tree"))
    if names is None or structure is None:
        return {}
    parts = structure.unflatten([Operand(number) for number in range(len(eqn.invars))])
    return {name: list(_positions(part)) for name, part in zip(names, parts, strict=False)}


def _positions(part: Any) -> Iterator[int]:
    """The numbers in what was unflattened; a ref with its transforms is no pytree of JAX's."""
    import jax

    if hasattr(part, "ref") and hasattr(part, "transforms"):
        yield from _positions(part.ref)
        yield from _positions(part.transforms)
        return
    for leaf in jax.tree.leaves(part):
        if isinstance(leaf, Operand):
            yield leaf.position
        elif hasattr(leaf, "ref") and hasattr(leaf, "transforms"):
            yield from _positions(leaf)
