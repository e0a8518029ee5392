"""Tests on the workers of a Dask scheduler, and their results here (``--pallas-fleet``).

The controller is the pytest session with the terminal. ``runner`` is its run loop: ``ledger`` says
which tests are to be sent, ``workers`` which workers take part, ``cluster`` talks to Dask, and
``results`` reports what comes back. ``kept`` has the parts of tests that an earlier process ran.
``remote`` runs on the workers. ``messages`` go between them, and ``project`` compares their files
and versions.
"""
