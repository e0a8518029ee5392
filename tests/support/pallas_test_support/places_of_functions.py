"""Functions and values where scripts must find them again; ``tests/unit/replay``."""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Any, NamedTuple

import jax
import pytest


class Kind(enum.Enum):
    CAUSAL = 1


@dataclasses.dataclass(frozen=True)
class Blocks:
    rows: int
    columns: int = 128


class Pair(NamedTuple):
    first: Any
    second: Any


def plain(x: Any) -> Any:
    return x + 1


class Holder:
    @staticmethod
    def inside(x: Any) -> Any:
        return x + 2


aliased = lambda x: x + 3  # noqa: E731
jitted = jax.jit(lambda x: x + 4)
partial = functools.partial(plain)
two = [lambda x: x + 5, lambda x: x + 6]  # on one line


def closure(amount: Any) -> Any:
    def inner(x: Any, more: int = 7, *, most: int = 10) -> Any:
        return min(plain(x) + amount + more, most)

    return inner


def jitted_closure(amount: int) -> Any:
    @jax.jit
    def inner(x: Any) -> Any:
        return x + amount

    return inner


@pytest.fixture
def unused() -> None: ...
