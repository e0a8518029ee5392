"""Masks and ids among the arguments of a failing call, as cells of a picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from pallas_sim.dtypes import Array
from pytest_pallas.checks.verdict import contents_of
from pytest_pallas.numerics.contents import in_words
from pytest_pallas.strategies.arguments import Arguments

#: Cells of a picture along each side, at most: of a larger array, the first rows and columns.
CELLS = 32

#: Number of arrays that are drawn.
_MOST = 3

#: Letters of ids: each id has one, in the order of the ids.
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def arguments_of(arguments: Arguments) -> list[dict[str, Any]]:
    """The first masks and ids of a call.

    Each has ``where``, ``role``, ``words``, ``shape`` and ``rows``: a word for each row of the last
    axis, with a letter for each element. Of masks, ``1`` is True and ``0`` False; of ids, equal
    letters are equal ids, as far as there are letters.
    """
    return [
        {
            "where": where,
            "role": role,
            "words": in_words(array),
            "shape": list(array.shape),
            "rows": _rows(array, role),
        }
        for where, role, array in contents_of(arguments)[:_MOST]
    ]


def _rows(array: Array, role: str) -> list[str]:
    matrix = array.reshape(-1, array.shape[-1])[:CELLS, :CELLS]
    if role == "mask":
        letters = np.where(matrix, "1", "0")
    else:
        _, number = np.unique(matrix, return_inverse=True)
        letters = np.array(list(_LETTERS))[number.reshape(matrix.shape) % len(_LETTERS)]
    return ["".join(row) for row in letters.tolist()]
