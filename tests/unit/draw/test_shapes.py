import pytest

from pytest_pallas import ShapeLanguageError
from pytest_pallas.draw.sizes import concrete, parse


@pytest.mark.parametrize(
    ("text", "arrays"),
    [
        ("m k, k n", (("m", "k"), ("k", "n"))),
        ("m", (("m",),)),
        ("  m\tk ,\n k", (("m", "k"), ("k",))),
        ("m 128, 2", (("m", 128), (2,))),
        ("m, ", (("m",), ())),
        ("()", ((),)),
        ("", ((),)),
        ("(), m, ()", ((), ("m",), ())),
        ("batch_1 B", (("batch_1", "B"),)),
    ],
)
def test_shapes_are_parsed_into_dims(text, arrays):
    assert parse(text).arrays == arrays


def test_names_are_unique_and_in_order():
    assert parse("m k, k n 3, m").names == ("m", "k", "n")


def test_constraints_follow_the_arrays():
    spec = parse("b h q d, b g k d; h = g*r, q < k <= 2*q; d % 8 == 0")
    assert spec.names == ("b", "h", "q", "d", "g", "k")
    assert spec.variables == ("b", "h", "q", "d", "g", "k", "r")
    assert [c.text for c in spec.constraints] == ["h = g*r", "q < k <= 2*q", "d % 8 == 0"]
    assert parse("m; m > 1") == parse("m; m > 1") != parse("m")


def test_concrete_shapes_have_the_sizes_of_dims():
    assert concrete(parse("m 2, k, ()"), {"m": 5, "k": 7}) == ((5, 2), (7,), ())


@pytest.mark.parametrize(
    ("text", "caret", "words"),
    [
        ("m k, k $", 7, "name or a positive integer"),
        ("m -3", 2, "positive integer"),
        ("m 0", 2, "min_dim=0"),
        ("m 1.5", 2, "positive integer"),
        ("m ()", 2, "stand alone"),
        ("() ()", 3, "stand alone"),
        ("() m", 3, "comma"),
        ("(m)", 0, "positive integer"),
        ("(); m", 4, "'m' is not a constraint"),
        ("h d;", 4, "'' is not a constraint"),
        ("h d; h = 2, d =", 12, "is not a constraint"),
        ("h d; h == f(d)", 5, "not call"),
        ("h d; h = d/2", 5, "write '//'"),
        ("h d; h = 1.5", 5, "not constant"),
        ("h d; h = -1", 5, "not unaryop"),
        ("h d; h < (d < 3)", 5, "not compare"),
        ("h d; h = 2*seed", 5, "rename"),
        ("m seed", 2, "rename"),
        ("m größe", 2, "name"),
        ("3m", 0, "name"),
    ],
)
def test_errors_show_the_place(text, caret, words):
    with pytest.raises(ShapeLanguageError) as caught:
        parse(text)
    problem, line, mark = str(caught.value).splitlines()
    assert words in problem
    assert line == f"    {text}"
    assert mark.index("^") == 4 + caret


def test_text_over_several_lines_is_shown_on_one():
    with pytest.raises(ShapeLanguageError) as caught:
        parse("m k,\nk $")
    assert str(caught.value).splitlines()[1:] == ["    m k, k $", "           ^"]


def test_not_a_string():
    with pytest.raises(ShapeLanguageError, match="must be a string"):
        parse(("m", "k"))
