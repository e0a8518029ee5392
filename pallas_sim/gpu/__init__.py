"""The machine model of a GPU.

Kernels of ``pl`` alone and of the Triton route:

    programs    the grid: programs in any order and at once
    blocks      the blocks of operands, which are parts of memory that all programs share
    accesses    what a program's loads, stores and atomics do to that memory
    order       which accesses of two programs nothing orders
    waiting     programs that wait for each other by looking at memory

Mosaic GPU kernels:

    mosaic      launches: grids, clusters, blocks and warpgroups of a Mosaic GPU kernel
    threads     who runs: ``GpuLaunch``, ``Cluster``, ``ThreadBlock``, ``GpuThread``
    operations  what engines do beside the threads: TMA copies, ``wgmma``, ``tcgen05``, ...
    barriers    barriers with phases, arrival counts and expected bytes
    scopes      shared memory, barriers and registers of a ``run_scoped``
    footprints  what blocks that nothing orders do to global memory
    registers   what certainly does not fit into registers
    streams     kernels that begin before the one ahead of them has ended

Rules of Mosaic GPU's primitives are in ``rules/mosaic_gpu``. Sources: PTX ISA 8.7 ("Memory
Consistency Model", "mbarrier", "cp.async.bulk", "wgmma"), and JAX's lowering, which says what a
primitive of Pallas becomes.
"""
