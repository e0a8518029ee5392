"""Code that a kernel inlines (``plgpu.inline_mgpu``), on all threads of a warpgroup at once.

Read them in this order:

    code         reads the operations of MLIR that JAX's function makes into plain data
    memory       what they run on: memory at addresses, threads with their values, the registry
    arithmetic   operations on numbers and vectors
    references   operations on memory, and branches and loops
    ptx          what threads of a warp do together, and inline assembly
    run          from the operands of an equation to its results

A value is one numpy array for all threads: [threads, *shape], or [1, *shape] where all have the
same. Integers are unsigned; operations say whether they mean a sign. To add an operation that
depends on its operands alone, or one that needs the threads and their memory:

    @pure("arith.addi")
    def _add(op: InlineOperation, a: Array, b: Array) -> Array:
        return a + b

    @operation("gpu.lane_id")
    def _lane(frame: InlineFrame, op: InlineOperation) -> Array:
        return as_type(np.arange(frame.threads) % 32, op)
"""
