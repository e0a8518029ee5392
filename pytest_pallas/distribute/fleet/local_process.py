"""In a worker process of ``--pallas-fleet=local:N``: what Dask loads before it starts."""

from __future__ import annotations

import os


def dask_setup(worker: object) -> None:
    """Leave the process group of the terminal, so that Ctrl-C reaches the controller alone."""
    del worker
    os.setpgrp()
