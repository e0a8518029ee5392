"""One session of pytest as several processes of one ``jax.distributed`` program.

Each host runs pytest, which neither collects nor runs tests: it starts the processes of the host
(``processes``), has each test run by all of them at once (``supervisor``), and restarts them when
one died. The first host reports (``plugin``). Inside of a process, ``process`` runs the tests.
"""
