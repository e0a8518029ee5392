"""Rules: what kernels of the Triton route say besides loads and stores.

Sources are JAX's lowering (``jax/_src/pallas/triton/primitives.py``) and NVIDIA's PTX ISA.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pallas_sim.accesses import report_input_write
from pallas_sim.compat.places import transforms_in
from pallas_sim.dtypes import Array, convert, rounded_to_bits
from pallas_sim.errors import MissingRuleError, SimulationError
from pallas_sim.gpu.portable_accesses import BlockAccess, ProgramBlock
from pallas_sim.gpu.portable_order import GridProgram, SharedArray
from pallas_sim.machine import Thread
from pallas_sim.memory import Ref
from pallas_sim.registry import Equation, Evaluate, rule
from pallas_sim.rules.references import ATOMICS, reducer

#: What ``tanh.approx`` keeps of float32: its relative error is at most 2^-11 (PTX ISA,
#: "Floating Point Instructions: tanh"). Of float16 and bfloat16 it is nearly all bits.
_TANH_BITS = 11

#: The instruction by type; ``x2`` takes two elements at a time.
_TANH = frozenset(f"tanh.approx.{kind}" for kind in ("f32", "f16", "f16x2", "bf16", "bf16x2"))


@rule("atomic_rmw", threaded=True)
def _atomic_rmw(eqn: Equation) -> Evaluate:
    import jax

    ref_at, transforms, value_at, mask_at = eqn.operands_in("args_tree")
    window, shape = transforms_in(transforms), tuple(eqn.out.shape)
    kind, dtype = str(eqn.params["atomic_type"].value), np.dtype(eqn.out.dtype)
    change, added = _change(kind, dtype), eqn.ins[value_at.position]
    refused = kind == "add" and dtype.kind in "iu" and added.shape and adds_integers_as_floats()

    def evaluate(thread: Thread, *operands: Any) -> Any:
        if refused:
            raise SimulationError(
                f"JAX {jax.__version__} adds {dtype}{list(added.shape)} atomically as floats of "
                "the same bits, which gives 0 or 2147483647 for small integers: update JAX to "
                "0.12, or use jax.ref.addupdate, which adds integers"
            )
        ref = _shared(thread, operands[ref_at.position])
        report_input_write(thread, ref, eqn.line)
        mask = None if mask_at is None else operands[mask_at.position]
        access = BlockAccess(thread, ref, window, operands, eqn.line, shape, mask)
        return access.update(change, operands[value_at.position], kind, used=eqn.used)

    return evaluate


def adds_integers_as_floats() -> bool:
    """Return whether JAX's lowering takes an array of integers for one of floats in ``atomic_add``.

    JAX 0.11 does: ``atom.add.f32`` in the machine code for int32, where 0.12 has ``atom.add.u32``.
    Negative integers are NaN then, and so is their sum: 2147483647 as an integer.
    """
    import jax

    return jax.__version_info__ < (0, 12)


def _shared(thread: Thread, ref: Ref) -> Ref:
    """Return a reference to memory of all programs; of own memory, as one to such memory."""
    if ref.block is not None:
        return ref

    if not ref.data.flags.c_contiguous:
        raise SimulationError("an atomic access to a part of memory that is not contiguous")
    block = ProgramBlock(SharedArray(ref.data), GridProgram(0, thread.program), (...,))
    return Ref(ref.data, ref.name, ref.space, block=block)


def _change(kind: str, dtype: np.dtype[Any]) -> Callable[[Array, Any], Array]:
    if kind in ("max", "min") and dtype.kind not in "iu":
        return _ordered(kind, dtype)
    if kind == "xchg":
        return lambda old, value: value
    if kind not in ATOMICS:
        raise MissingRuleError(f"the simulator does not know the atomic operation {kind!r}")
    return reducer(kind, dtype)


def _ordered(kind: str, dtype: np.dtype[Any]) -> Callable[[Array, Any], Array]:
    """Return the larger or the smaller float, by integers (``_expand_atomic_fp_min_max``).

    Where the operand's sign bit is not set, as signed integers; else the other one of both as
    unsigned integers. So NaN is larger than all that have its sign bit.
    """
    signed, unsigned = (np.dtype(f"{letter}{dtype.itemsize}") for letter in "iu")
    positive, negative = (np.maximum, np.minimum) if kind == "max" else (np.minimum, np.maximum)

    def change(old: Array, value: Any) -> Array:
        value = np.ascontiguousarray(value, dtype)
        old = np.ascontiguousarray(old)
        ahead = positive(old.view(signed), value.view(signed)).view(dtype)
        behind = negative(old.view(unsigned), value.view(unsigned)).view(dtype)
        return np.where(value.view(signed) >= 0, ahead, behind)

    return change


@rule("atomic_cas", threaded=True)
def _atomic_cas(eqn: Equation) -> Evaluate:
    dtype = np.dtype(eqn.out.dtype)
    bits = np.dtype(f"u{dtype.itemsize}")

    def evaluate(thread: Thread, ref: Ref, expected: Any, value: Any) -> Any:
        expected_bits = np.asarray(expected, dtype).reshape(1).view(bits)

        def change(old: Array, new: Any) -> Array:
            return np.where(np.ascontiguousarray(old).view(bits) == expected_bits, new, old)

        report_input_write(thread, ref, eqn.line)
        ref = _shared(thread, ref)
        operands = (ref, expected, value)
        # Whatever it returns, a program that goes on knows what others did before.
        access = BlockAccess(thread, ref, (), operands, eqn.line, ())
        return np.asarray(access.update(change, value, "cas", used=True))

    return evaluate


@rule("elementwise_inline_asm", "elementwise_inline_asm_p")
def _inline_assembly(eqn: Equation) -> Evaluate:
    text = str(eqn.params["asm"]).strip()
    dtype = np.dtype(eqn.ins[0].dtype) if eqn.ins else np.dtype(np.float32)
    instruction = text.partition(" ")[0]
    if instruction not in _TANH or len(eqn.ins) != 1 or text.count(";") != 1:
        raise MissingRuleError(
            f"inline assembly cannot be simulated ({text!r}); of its instructions the simulator "
            "knows tanh.approx only, which is that of plgpu.approx_tanh"
        )

    def evaluate(x: Array) -> Sequence[Array]:
        exact = np.tanh(convert(x, np.dtype(np.float32)))
        return [
            rounded_to_bits(exact, _TANH_BITS) if dtype.itemsize == 4 else convert(exact, dtype)
        ]

    return evaluate
