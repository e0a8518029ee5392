"""Tests on the workers of a Dask scheduler, and their results here (``--pallas-fleet``)."""
