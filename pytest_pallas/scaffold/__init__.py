"""``pytest-pallas new``: a test module with a spec, guessed from a function and trial traces.

``command`` is the entry, ``loading`` imports the function and looks for its reference,
``parameters`` reads its signature, ``source`` and ``docstrings`` what its text says of arrays,
``trials`` traces it, ``search`` finds arguments that it accepts, ``sizes`` finds which axes belong
together, and ``module`` writes the text.
"""
