"""A failure to be repeated elsewhere, and goldens: answers to compare with.

``saved`` writes both files of a failure beside the results: a script, whose text ``script`` makes,
and a file for ``--pallas-replay``, which ``goldens`` defines. Scripts import ``parts``. ``values``
writes calls and arrays as safetensors and JSON.
"""
