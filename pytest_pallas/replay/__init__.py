"""A failure to be repeated elsewhere: as a script, and as a file for ``--pallas-replay``.

``saved`` writes both beside the results. ``script`` makes the text of the script: ``places`` says
where the call ran, ``promises`` what must hold, ``literals`` and ``functions`` write values and
functions, ``plain_jax`` the call without this package. Scripts import ``parts``.
"""
