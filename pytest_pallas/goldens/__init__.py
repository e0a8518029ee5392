"""Answers of a kernel, kept to be compared with on another machine: ``--pallas-golden``.

``entry`` is what is known of one answer, ``store`` the folder they are in, ``values`` and
``tensors`` how calls and arrays are written without pickles, ``places`` where an answer came from.
"""
