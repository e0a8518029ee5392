"""Kernels that are wrong on purpose, each in one way that people get wrong.

One module a class of bug. Every kernel has a ``KernelSpec``, and beside it ``naive_NAME()``: the
test that is usually written for such a kernel (see ``naive.agrees``), which raises
``AssertionError`` if it finds the bug. The ``block`` arguments only keep the verified shapes small.
"""
