"""``--pallas-max-bytes``, as strategies see it."""

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase

from pytest_pallas import DrawTooLargeError
from pytest_pallas import strategies as pst
from pytest_pallas.budget import (
    DEFAULT_MAX_BYTES,
    LastUsed,
    bytes_text,
    limited,
    max_bytes,
    option_text,
    parse_bytes,
)
from pytest_pallas.draw.arguments import bytes_in
from pytest_pallas.draw.arrays import draw_once

MATMUL = "m k, k n"


def test_the_limit_ends_with_its_context():
    assert max_bytes() == DEFAULT_MAX_BYTES == 64 * 2**20
    with limited(100):
        with limited(7):
            assert max_bytes() == 7
        assert max_bytes() == 100
    with pytest.raises(ZeroDivisionError), limited(1):
        raise ZeroDivisionError
    assert max_bytes() == DEFAULT_MAX_BYTES


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("65536", 65536),
        ("64KiB", 2**16),
        ("64MiB", 2**26),
        ("1GiB", 2**30),
        ("1.5 mib", 3 * 2**19),
        ("0", None),
        ("-1MiB", None),
        ("64MB", None),
        ("MiB", None),
        ("nan", None),
        ("inf", None),
        ("", None),
    ],
)
def test_sizes_in_words(text, number):
    assert parse_bytes(text) == number


def test_sizes_are_told():
    assert [bytes_text(n) for n in (5, 2**20, 3 * 2**19)] == ["5 bytes", "1 MiB", "1.5 MiB"]
    assert [option_text(n) for n in (5, 2**26, 2**20 + 1)] == ["5", "64MiB", "1048577"]
    assert all(parse_bytes(option_text(n)) == n for n in (5, 2**26, 2**20 + 1))


def test_arrays_keep_to_it_whenever_they_were_made(draws):
    strategy = pst.arrays(MATMUL, around=64)
    assert max(bytes_in(drawn) for drawn in draws(strategy)) > 20_000
    with limited(20_000):
        assert 10_000 < max(bytes_in(drawn) for drawn in draws(strategy)) <= 20_000
    assert max(bytes_in(drawn) for drawn in draws(strategy)) > 20_000


def test_the_smaller_of_it_and_their_own_holds(draws):
    strategy = pst.arrays(MATMUL, around=64, max_bytes=10_000)
    for limit, most in ((5_000, 5_000), (2**20, 10_000)):
        with limited(limit):
            assert most / 2 < max(bytes_in(drawn) for drawn in draws(strategy)) <= most


def test_every_boundary_that_fits_is_still_drawn(draws):
    with limited(8 * 2**10):
        drawn = draws(pst.arrays("m, m k", dtype=pst.floats(), around={"m": 16}, dims={"k": 1}))
    assert {each.recipe["m"] for each in drawn} >= {1, 15, 16, 17, 31, 32, 33}


def test_draws_with_constraints_keep_to_the_limit(draws):
    with limited(2_000):
        drawn = draws(pst.arrays("h d, g d; h = g*r, r >= 1", dims={"d": [8, 64]}, around=8))
    assert max(bytes_in(each) for each in drawn) <= 2_000
    assert all(each.recipe["h"] == each.recipe["g"] * each.recipe["r"] for each in drawn)


@pytest.mark.parametrize(
    "strategy",
    [
        pst.arrays("m k", dims={"m": 64, "k": [64, 128]}, dtype="float32"),
        pst.arrays("m 64; m = 4*n", dims={"n": 16}, dtype="float32"),
        pst.arrays("128 64", dtype="bfloat16"),
    ],
)
def test_an_array_that_cannot_be_small_enough(draws, strategy):
    with limited(2**14):
        assert {bytes_in(drawn) for drawn in draws(strategy, 20)} == {2**14}
    with limited(2**13), pytest.raises(DrawTooLargeError, match="--pallas-max-bytes=8KiB"):
        draws(strategy, 1)


DOMAIN = {
    "masks": (pst.masks(64, 80), 64 * 80),
    "masks, batch": (pst.masks(8, 80, batch=3), 3 * 8 * 80),
    "indices": (pst.indices(50, size=100, dtype="int8"), 50),
    "permutations": (pst.permutations(50), 200),
    "page_tables": (pst.page_tables(6, pages_each=5, pages=40), 120),
    "lengths": (pst.lengths(30, max_length=9), 120),
    "group_sizes": (pst.group_sizes(30, total=9), 120),
    "cu_seqlens": (pst.cu_seqlens(30, total=9), 120),
    "segment_ids": (pst.segment_ids(30), 120),
    "segment_ids, batch": (pst.segment_ids(30, batch=2), 240),
}


@pytest.mark.parametrize("name", sorted(DOMAIN))
def test_what_kernels_take_besides_arrays(draws, name):
    strategy, number = DOMAIN[name]
    with limited(number):
        (drawn,) = draws(strategy, 1)
        assert number <= drawn.nbytes <= number + 4  # cu_seqlens has one more than groups
    words = rf"--pallas-max-bytes={number - 1}; draw a smaller one"
    with limited(number - 1), pytest.raises(DrawTooLargeError, match=words):
        draws(strategy, 1)


def masked(drawn):
    return {"mask": pst.masks(drawn.recipe["q"], drawn.recipe["k"])}


@pytest.mark.parametrize("role", ["then", "options"])
def test_what_goes_with_arrays_counts(draws, role):
    arrays = pst.arrays("q 4, k 4", around={"q": 64, "k": 64}, dtype="float32")
    whole = pst.arguments(arrays, **{role: masked})
    with limited(6_000):  # 129 * 4 * 4 bytes, and 129 * 129 of the mask, do not fit
        drawn = draws(whole, 400)  # in 100, one of seven sizes may by chance be missing
        sizes = [bytes_in(call.args) + bytes_in(call.options) for call in drawn]
    assert 3_000 < max(sizes) <= 6_000
    assert {call.recipe["q"] for call in drawn} >= {1, 63, 64, 65, 127, 128, 129}


def test_a_call_that_cannot_be_small_enough(draws):
    call = pst.arguments(
        pst.arrays("m", dims={"m": [10, 100]}, dtype="int8"), then={"mask": pst.masks(30, 30)}
    )
    with limited(950):
        assert {each.recipe["m"] for each in draws(call, 20)} == {10}
    with limited(905), pytest.raises(DrawTooLargeError, match="--pallas-max-bytes=905"):
        draws(call, 20)
    with limited(800), pytest.raises(DrawTooLargeError, match=r"masks\[30, 30\] of 900 bytes"):
        draws(call, 20)
    fixed = pst.arguments(pst.arrays("600", dtype="int8"), then={"mask": pst.masks(30, 30)})
    words = "a call of 1.465 KiB does not fit within --pallas-max-bytes=1000"
    with limited(1000), pytest.raises(DrawTooLargeError, match=words):
        draws(fixed, 5)
    foreign = pst.arguments(st.just((np.zeros(100),)))
    with limited(799), pytest.raises(DrawTooLargeError, match="a call of 800 bytes"):
        draws(foreign, 5)


def test_the_same_limit_gives_the_same_draws(draws):
    strategy = pst.arguments(pst.arrays("q 4, k 4", around=64, dtype=pst.floats()), then=masked)
    with limited(6_000):
        assert repr(draws(strategy, 60)) == repr(draws(strategy, 60))


def test_it_does_not_change_what_fits_anyway(draws):
    strategy = pst.arrays(MATMUL, around=16)
    with limited(2**30):
        unbounded = repr(draws(strategy))
    assert repr(draws(strategy)) == unbounded


def test_shrinks_within_it(shrunk):
    strategy = pst.arguments(pst.arrays("q 4, k 4", around=64, dtype="float32"), then=masked)
    with limited(6_000):
        text = shrunk(strategy, lambda call: call.recipe["q"] > 64)
    assert "q=65, k=1, dtype=float32, values=integers, seed=0" in text


def test_a_stored_failure_that_no_longer_fits_is_dropped():
    database = InMemoryExampleDatabase()
    strategy = pst.arguments(pst.arrays(MATMUL, around=64, dtype="float32"), options={"x": 1})
    found = []

    @settings(
        database=database,
        deadline=None,
        max_examples=50,
        phases=[Phase.reuse, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(call=strategy)
    def run(call):
        found.append(bytes_in(call.args))
        assert found[-1] < 60_000

    with pytest.raises(AssertionError):
        run()
    assert database.data
    found.clear()
    with limited(1_000):
        run()
    assert 0 < max(found) <= 1_000


def test_one_draw_for_validation_keeps_to_it():
    with limited(500), pytest.raises(DrawTooLargeError, match="--pallas-max-bytes=500"):
        draw_once(pst.arrays("m", dims={"m": 1000}))


def test_a_cache_keeps_what_was_used_last():
    cache = LastUsed(most=2, most_bytes=100)
    cache.add("a", 1, 10)
    cache.add("b", 2, 10)
    assert cache.get("a") == 1
    cache.add("c", 3, 10)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]
    assert (len(cache), cache.bytes) == (2, 20)


def test_a_cache_keeps_so_many_bytes():
    cache = LastUsed(most=10, most_bytes=100)
    for number in range(10):
        cache.add(number, number, 40)
    assert (len(cache), cache.bytes) == (2, 80)
    cache.add(9, 9, 20)
    assert (len(cache), cache.bytes) == (2, 60)


def test_a_cache_keeps_the_last_value_whatever_it_has():
    cache = LastUsed(most=10, most_bytes=100)
    cache.add("small", 1, 10)
    cache.add("large", 2, 1000)
    assert (cache.get("small"), cache.get("large"), len(cache)) == (None, 2, 1)
    cache.add("small", 1, 10)
    assert (cache.get("large"), cache.bytes) == (None, 10)
