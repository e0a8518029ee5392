"""Wrong kernels beside right ones, one module a family, after classes of bugs that were real.

A kernel takes ``wrong``, the name of one mistake; without it, it is right. So each mistake is a few
words of code, ``SPEC_NAME`` verifies the wrong kernel, and ``SPEC_NAME_RIGHT`` its twin, which has
to pass every check. The first line of a wrong kernel's docstring says what it gets wrong.
"""
