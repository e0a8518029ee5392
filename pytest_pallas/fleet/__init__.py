"""Tests on the workers of a Dask scheduler, and their results here (``--pallas-fleet``).

The controller is the pytest session with the terminal. ``runner`` is its run loop, ``ledger`` says
which tests are to be sent, ``cluster`` talks to Dask, and ``results`` reports what comes back.
``worker`` runs in a Dask worker: it passes tests to a child process, whose session is ``child``.
``messages`` go between them, and ``project`` compares their files and versions.
"""
