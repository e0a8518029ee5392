"""Private names of JAX: outputs of a ``pallas_call`` that share the memory of an input."""

from __future__ import annotations

from typing import Any

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
