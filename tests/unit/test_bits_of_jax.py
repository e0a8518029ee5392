"""Rules are compared with what XLA is known to give, or with XLA itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support import bits_of_jax, rules_of_jax
from pallas_test_support.rules_of_jax import LITERAL, assert_same_bits, digest_of

X = np.arange(7, dtype=np.float32)


def double(x: Any) -> Any:
    return x * 2


def key_of(function: Any, *args: Any) -> str:
    lowered = jax.jit(function, compiler_options=LITERAL).lower(*args)
    return bits_of_jax.key_of(lowered.as_text(), args, LITERAL)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is known of XLA: nothing, to begin with."""
    found: dict[str, str] = {}
    monkeypatch.setattr(bits_of_jax, "_stored", lambda: found)
    return found


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of what XLA was asked about."""
    keys: list[str] = []
    monkeypatch.setattr(bits_of_jax, "add", lambda key, _: keys.append(key))
    return keys


def test_xla_is_asked_about_what_is_not_known_only(
    stored: dict[str, str], compiled: list[str]
) -> None:
    assert_same_bits(double, X)
    assert compiled == [key_of(double, X)]
    stored[compiled[0]] = digest_of(jax.jit(double)(X))
    assert_same_bits(double, X)
    assert len(compiled) == 1


def test_a_simulator_that_gives_something_else_is_told_what_xla_gives(
    stored: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored[key_of(double, X)] = digest_of(double(X))
    monkeypatch.setattr(rules_of_jax, "_simulated", lambda function, x: function(x) + 1)
    with pytest.raises(AssertionError, match=r"7 of 7 elements of float32 differ: \[1\. 3\."):
        assert_same_bits(double, X)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: x * 3, X),
        (double, X + 1),
        (double, X.astype(np.float16)),
        (double, X.reshape(7, 1)),
    ],
)
def test_programs_and_operands_have_keys_of_their_own(function: Any, x: Any) -> None:
    assert key_of(function, x) != key_of(double, X)
    assert key_of(double, X) == key_of(double, X.copy())


def test_only_the_payload_of_nans_is_left_out_of_a_digest() -> None:
    one, other = np.array([0x7FC00000, 0xFFC00001], np.uint32).view(np.float32)[:, None]
    assert digest_of(one) == digest_of(other)
    assert len({digest_of(np.float32([each])) for each in (0.0, -0.0, np.nan, np.inf, 1.0)}) == 5
    assert digest_of([one]) != digest_of(one)
    assert digest_of(jnp.zeros(3)) != digest_of(jnp.zeros((3, 1)))
    assert digest_of(np.zeros(2, np.int32)) != digest_of(np.zeros(2, np.uint32))


def test_what_is_known_of_a_program_is_what_xla_gives_today() -> None:
    """One that the file has if it was written with this version of jaxlib."""
    assert_same_bits(double, X)
    known = bits_of_jax.known(key_of(double, X))
    assert known in (None, digest_of(jax.jit(double, compiler_options=LITERAL)(X)))
