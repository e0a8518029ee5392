"""Supervised worker processes, for work that may hang, crash or use too much memory.

A ``WorkerPool`` gives jobs (bytes in, bytes out) to processes that it starts, keeps warm, and kills
if they misbehave. A job always ends with a ``JobResult``, whatever happens to its process.
"""
