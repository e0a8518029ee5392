"""What is kept out of the searches for garbage: all that is there when tests begin."""

from __future__ import annotations

import gc

import hypothesis
from hypothesis import strategies as st


def freeze() -> None:
    """Let no later search look through what there is, which a fork would have to copy, too.

    Hypothesis asks the collector who refers to its generators of random numbers, as it draws for
    the first time: what is frozen is not in the answer, and older versions warn.
    """

    @hypothesis.settings(max_examples=1, database=None)
    @hypothesis.given(st.none())
    def draw(_: None) -> None: ...

    draw()
    gc.collect()
    gc.freeze()
