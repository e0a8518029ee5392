"""The machine model of a GPU.

Kernels of ``pl`` alone and of the Triton route (``pl.pallas_call``):

    triton              rejects kernels: lowering, products, shared memory
    portable_grids      runs the programs of a grid, in any order or at the same time
    portable_accesses   blocks, and loads, stores and atomics on the memory that programs share
    portable_order      races between programs, and programs that wait for each other

Mosaic GPU kernels (``plgpu.kernel``):

    mosaic_kernels      runs a kernel: clusters, blocks, warpgroups and warps
    threads             the state of a run: launches, clusters, blocks, warpgroups, barriers
    engines             operations beside the threads: TMA, ``wgmma``, ``tcgen05``
    barriers            arrivals at barriers and waits, which let engines go on
    scopes              shared memory, barriers, registers and semaphores of a ``run_scoped``
    tensor_memory       tensor memory of Blackwell
    windows             windows of global memory, and the memory of other devices
    launch_order        races between clusters, and between kernels
    inline              code of MLIR and PTX that a kernel inlines

Both use ``tensor_cores``, the products of chips. Rules of Mosaic GPU's primitives are in
``rules/mosaic_*.py``, those of the Triton route in ``rules/triton.py``. Sources: PTX ISA 8.7
("Memory Consistency Model", "mbarrier", "cp.async.bulk", "wgmma") and 9.0 ("tcgen05"), and JAX's
lowering, which shows the instructions of each primitive of Pallas.
"""
