"""Stand-alone scripts that reproduce a failure with jax and numpy alone.

``saved`` writes the script of a failed test, ``compose`` makes its text: what ``literals`` and
``functions`` say of the failing call, and copies of the source of ``parts``, ``questions``,
``programs``, ``uninitialized`` and ``related``.
"""
