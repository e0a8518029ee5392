import pytest

from pytest_pallas.draw.sizes import defined, definitions, holds, parse_constraint

SIZES = {"a": 2, "b": 3, "c": 6, "z": 0}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("c = a*b", True),
        ("c == a + b", False),
        ("a < b < c", True),
        ("a < c < b", False),
        ("a <= 2", True),
        ("a >= b", False),
        ("b > a", True),
        ("a != b", True),
        ("c % b = 0", True),
        ("b % a = 0", False),
        ("c // b = a", True),
        ("c - a*(b - 1) = 2", True),
        ("c // z = 0", False),
        ("c % z != 1", False),
    ],
)
def test_a_constraint_holds_for_sizes_or_not(text, expected):
    assert holds(parse_constraint(text), SIZES) is expected


def test_names_and_what_is_defined():
    constraint = parse_constraint("  h = g*r ")
    assert (constraint.text, constraint.names) == ("h = g*r", ("h", "g", "r"))
    assert constraint.defines == "h"
    assert defined(constraint, {"g": 3, "r": 5}) == 15
    assert defined(parse_constraint("h = g // r"), {"g": 3, "r": 0}) is None


@pytest.mark.parametrize("text", ["2*h = g", "h < g", "h = h*g", "h = g = 2", "h != g"])
def test_what_defines_nothing(text):
    assert parse_constraint(text).defines is None


@pytest.mark.parametrize(
    ("texts", "known", "expected"),
    [
        (["h = g*r", "q < k"], [], ["h"]),
        (["h = g*r"], ["h"], []),
        (["h = g*r", "h = 4"], [], ["h"]),
        (["h = 2*g", "g = r + 1"], [], ["g", "h"]),
        (["h = g", "g = h"], [], ["h"]),
        (["a = b", "b = c", "c = a"], [], ["b", "a"]),
    ],
)
def test_definitions_are_in_order_and_without_circles(texts, known, expected):
    constraints = [parse_constraint(text) for text in texts]
    defining, rest = definitions(constraints, known)
    assert [constraint.defines for constraint in defining] == expected
    assert len(defining) + len(rest) == len(texts)
