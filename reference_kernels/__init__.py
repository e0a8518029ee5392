"""Reference kernels: the Pallas kernels that pytest-pallas ships and verifies itself.

One package a family, one module a kernel. A module holds the kernel's body, a wrapper with an
ordinary signature and the reference in ``jax.numpy``, so it reads as an example of how that thing
is done well. It needs jax and numpy, and few other modules of this package, so it can be copied.
Beside it, ``<kernel>_spec`` ties them together by a ``KernelSpec``. All of them are run by::

    pytest --pallas-suite=reference_kernels

Conventions that hold in every module of a kernel:

- A wrapper builds its ``pallas_call`` when it is called and never passes ``interpret=``: whoever
  calls it decides where it runs.
- Wrappers are not jitted. Wrap them in ``jax.jit``, with block sizes and options static.
- Every size of every operand is allowed, but no dimension may be empty. What lies in a block beyond
  the end of an array is unspecified (NaN under the interpreters, leftovers on a chip), so it is
  masked wherever it could reach an element that is kept.
- Block sizes are keyword arguments. A block is never larger than its operand, rounded up to whole
  tiles, so a small operand is one block. For a TPU, the last dimension of a block must be a
  multiple of 128 or the whole dimension, and the one before it a multiple of 8 for 32-bit, 16 for
  16-bit and 32 for 8-bit types, or whole.
- Products and sums accumulate in float32 and are rounded once, at the end.
- A kernel over several devices is two functions: one takes the shard of its device and an
  ``axis_name``, inside ``jax.shard_map``, like the collectives of ``jax.lax``; the other,
  ``..._on_mesh``, takes the shards of all devices, stacked. ``_mesh`` says more.
- A misuse raises ``ValueError`` that names the operand, what was given and what is wanted.
"""
