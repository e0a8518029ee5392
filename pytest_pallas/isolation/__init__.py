"""Tests in their own process, so that a crash or a hang ends only one test.

``policy`` selects these tests, with the ``History`` of earlier sessions. In the reporting process,
``isolator`` sends a test to a worker (``requests``) and replaces its own reports with the worker's;
``crash_reports`` makes the error for a worker that did not answer. In the worker, ``worker`` is a
pytest session that runs the requested tests, and the ``Alarm`` of ``crash_reports`` kills the
process if a step does not end. ``leaks`` compares the state of a process before and after a check,
in both.
"""
