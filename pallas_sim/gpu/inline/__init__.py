"""Code that a kernel inlines (``plgpu.inline_mgpu``), on all threads of a warpgroup at once.

JAX's function makes operations of MLIR, which ``mlir.py`` reads into plain data (``code.py``);
``run.py`` and ``frame.py`` evaluate them. A value is one numpy array for all threads: [threads,
*shape], or [1, *shape] where all have the same. Integers are unsigned; operations say whether they
mean a sign. To add an operation:

    @operation("arith.addi")
    def _add(frame: Frame, op: InlineOperation, a: Array, b: Array) -> Array:
        return a + b

In ``operations/``, ``arithmetic.py`` has numbers, ``vectors.py`` registers, ``references.py`` what
is in memory, ``lanes.py`` what threads do together, ``control.py`` branches and loops, and
``ptx.py`` inline assembly.
"""

from __future__ import annotations
