"""Private names of JAX: outputs of a ``pallas_call`` that share the memory of an input."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from pytest_pallas.compat.memory_gpu import INTERPRETING

#: Memory in which a kernel accesses an operand where the caller has it, when it likes.
_IN_PLACE = ("any", "hbm", "host", "gmem")


def pipelined_aliases(params: Any) -> tuple[tuple[int, int], ...]:
    """The aliases of a ``pallas_call`` whose input is brought to the body in blocks.

    Pairs of the operand's position, behind the sizes of dynamic grid dimensions, and the output's.
    What such an input's block holds is what its memory held when the block was fetched; and a TPU
    fetches it while an earlier program runs. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    mapping = params["grid_mapping"]
    found: list[tuple[int, int]] = []
    for operand, output in params["input_output_aliases"]:
        number = int(operand) - mapping.num_index_operands
        if number < 0:
            continue  # prefetched as a whole
        space = str(mapping.block_mappings[number].transformed_block_aval.memory_space).lower()
        if space.rpartition(".")[2] not in _IN_PLACE:
            found.append((int(operand), int(output)))
    return tuple(found)


@contextmanager
def separate_aliases() -> Generator[None]:
    """Let the GPU interpreter give aliased outputs memory of their own, which starts as a copy.

    Of ``pipelined_aliases`` only. The kernel gets one more input, of which its body knows nothing:
    the same array again, in the blocks of the output, and aliased to that in place of the first.

    The caller must be in a context that is part of jit's key. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    module: Any = importlib.import_module(INTERPRETING)
    interpret = module.interpret_pallas_call
    module.interpret_pallas_call = _separating(interpret)
    try:
        yield
    finally:
        module.interpret_pallas_call = interpret


def _separating(interpret: Callable[..., Any]) -> Callable[..., Any]:
    def separating(*args: Any, **params: Any) -> Any:
        mapping, jaxpr = params["grid_mapping"], params["jaxpr"]
        apart = pipelined_aliases(params)
        if not apart:
            return interpret(*args, **params)
        core: Any = importlib.import_module("jax._src.core")
        scalars, inputs = mapping.num_index_operands, mapping.num_inputs
        dynamic = len(args) - scalars - inputs
        blocks, refs = list(mapping.block_mappings), list(jaxpr.invars)
        names = list(jaxpr.debug_info.arg_names or [""] * len(refs))
        arrays, aliases = list(args), dict(params["input_output_aliases"])
        for number, (operand, output) in enumerate(apart):
            # In front of the outputs, behind the inputs that were added before.
            like = inputs + number + output
            blocks.insert(inputs + number, mapping.block_mappings[inputs + output])
            ref = core.Var(refs[scalars + like].aval)
            refs.insert(scalars + inputs + number, ref)
            names.insert(scalars + inputs + number, f"the copy of operand {operand}")
            arrays.append(args[dynamic + operand])
            del aliases[operand]
            aliases[scalars + inputs + number] = output
        mapping = mapping.replace(block_mappings=tuple(blocks), num_inputs=inputs + len(apart))
        info = jaxpr.debug_info._replace(arg_names=tuple(names))
        params = params | {
            "grid_mapping": mapping,
            "jaxpr": jaxpr.replace(invars=refs, debug_info=info),
            "input_output_aliases": tuple(aliases.items()),
        }
        return interpret(*arrays, **params)

    return separating
