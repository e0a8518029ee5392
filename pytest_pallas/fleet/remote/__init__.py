"""What runs on the machines of a fleet.

``worker`` is in a Dask worker, and imports no jax. It passes tests to a child process, whose pytest
session is ``child``; ``child_messages`` go between the two. ``local_process`` is what Dask loads in
workers of ``local:N``.
"""
