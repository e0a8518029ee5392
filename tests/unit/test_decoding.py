"""Data of files and machines: JSON of limited size, read by types, fit for a terminal."""

from __future__ import annotations

import base64
import dataclasses
import gc
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import numpy as np
import pytest

from pallas_sim.findings import Text
from pytest_pallas import decoding
from pytest_pallas.decoding import (
    Accepts,
    AsWritten,
    Between,
    Checked,
    Count,
    DataError,
    Matching,
    Sized,
    decode,
    jsonable,
    parse,
    parse_object,
    shown,
    tagged,
    untagged,
)


@dataclasses.dataclass(frozen=True)
class Leaf:
    name: str
    kind: Literal["a", "b"] = "a"


class Pair(NamedTuple):
    left: int
    right: str = ""


class Row(TypedDict):
    number: Count
    words: NotRequired[list[str]]


# Outside of the class, whose annotations are texts.
PlainLeaf = Annotated[Mapping[str, Any], Checked(lambda: Leaf)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tree:
    size: Count
    leaves: tuple[Leaf, ...] = ()
    inner: Tree | None = None
    place: tuple[str, int] | tuple[()] = ()
    rows: Mapping[str, Row] = dataclasses.field(default_factory=dict)
    pairs: Sequence[Pair] = ()
    note: Text = ""
    error: float | None = None
    content: bytes = b""
    digest: Annotated[str, Matching("[0-9a-f]*", "hexadecimal digits")] = ""
    leaf: PlainLeaf = dataclasses.field(default_factory=lambda: {"name": "", "kind": "a"})
    rest: Any = None


TREE = Tree(
    size=3,
    leaves=(Leaf("x"), Leaf("y", "b")),
    inner=Tree(size=0, error=float("inf"), pairs=[]),
    place=("a.py", 3),
    rows={"r": {"number": 1, "words": ["w"]}, "s": {"number": 2}},
    pairs=[Pair(1, "r"), Pair(2)],
    note="two\nlines",
    content=b"\0\xff",
    digest="0f",
    rest={"deep": [1, [2.5, None, True]]},
)


def test_a_value_survives_json():
    assert decode(Tree, parse(json.dumps(jsonable(TREE)))) == TREE


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": "3"}, "size must be an integer, not '3'"),
        ({"size": True}, "size must be an integer, not True"),
        ({"size": -1}, "size must be a number from 0"),
        ({"size": 2.0}, "size must be an integer, not 2.0"),
        ({"size": 10**400}, "size is an integer of 1,329 bits"),
        ({"error": "1"}, "error must be a number or null, not '1'"),
        ({"leaves": 3}, "leaves must be a list, not 3"),
        ({"leaves": [{"name": "x"}, {"name": "x", "kind": "c"}]}, r"leaves\[1\].kind must be one"),
        ({"leaves": [{}]}, r"leaves\[0\] lacks the field 'name'"),
        ({"leaves": [{"name": "x", "\x1b": 1}]}, r"leaves\[0\] has the field '\\x1b', which is"),
        ({"inner": {"size": 0, "inner": {}}}, "inner.inner lacks the field 'size'"),
        ({"place": ["a.py"]}, "place must be a list, not a list of 1"),
        ({"rows": {"r": {"number": "1"}}}, r"rows\['r'\].number must be an integer"),
        ({"rows": {"r": {}}}, r"rows\['r'\] lacks the field 'number'"),
        ({"pairs": [[1, 2]]}, r"pairs\[0\]\[1\] must be a text, not 2"),
        ({"pairs": [[]]}, r"pairs\[0\] must be a list of 2, not a list of 0"),
        ({"content": "?"}, "content must be bytes in base64"),
        ({"digest": "../../evil.py"}, "digest must be hexadecimal digits, not '../../evil.py'"),
        ({"leaf": {"name": 3}}, "leaf.name must be a text"),
        ({"rest": [[[[[1]]]] * 2, {1: 2}, {3}, object()]}, "rest must be a plain value"),
        ({"other": 1}, "has the field 'other', which is not known"),
    ],
)
def test_what_is_wrong_and_where(change, words):
    with pytest.raises(DataError, match=words) as caught:
        decode(Tree, {**jsonable(TREE), **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1,]", '{"a": 1', "9" * 5000, "nul"])
def test_no_json(text):
    with pytest.raises(DataError, match="is no JSON"):
        parse(text)


@pytest.mark.parametrize("opened", ["[", '{"a":'])
def test_levels_are_limited(opened):
    with pytest.raises(DataError, match="nested too deeply"):
        parse(opened * 200_000)
    deep: Any = 1
    for _ in range(decoding.MOST_DEPTH + 1):
        deep = [deep]
    with pytest.raises(DataError, match="nested more than 100 levels"):
        decode(Any, deep)
    assert decode(Any, deep[0]) == deep[0]


def test_sizes_are_limited():
    with pytest.raises(DataError, match="is too large: 11 bytes, of at most 10"):
        parse("1" * 11, most=10)
    with pytest.raises(DataError, match="must be a list of at most 2, not a list of 3"):
        decode(Annotated[list[int], Sized(2)], [1, 2, 3])
    with pytest.raises(DataError, match="must be a number from 1 to 5, not inf"):
        decode(Annotated[float, Between(1, 5)], parse("1e400"))


def test_bytes_that_are_no_text():
    with pytest.raises(DataError, match="is no UTF-8 text at byte 1"):
        parse(b'"\xff"')


@pytest.mark.parametrize(
    ("text", "name", "lines"),
    [
        ("plain é 文", "plain é 文", "plain é 文"),
        ("a\nb\tc", r"a\nb\tc", "a\nb\tc"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("\x1b]0;title\x07\x1b[2J", r"\x1b]0;title\x07\x1b[2J", r"\x1b]0;title\x07\x1b[2J"),
        ("\r\x00\x9b\u2028", r"\r\x00\u009b\u2028", r"\r\x00\u009b\u2028"),
        ("\ud800\u202e", r"\ud800\u202e", r"\ud800\u202e"),
        ("::error::x", r"\x3a:error::x", r"\x3a:error::x"),
        ("a\n  ::error::x", r"a\n  ::error::x", "a\n  \\x3a:error::x"),
        ("x ##[error] ##vso[x]", r"x #\x23[error] #\x23vso[x]", r"x #\x23[error] #\x23vso[x]"),
        ("a.py::test[::2]", "a.py::test[::2]", "a.py::test[::2]"),
    ],
)
def test_text_that_a_terminal_can_show(text, name, lines):
    assert shown(text) == decode(str, text) == name
    assert shown(text, lines=True) == decode(Text, text) == lines
    assert shown(name) == name
    assert decode(Annotated[str, AsWritten()], text) == text


def test_older_forms_are_accepted():
    schema = Annotated[Leaf, Accepts(lambda plain: {"name": plain} if plain == "old" else plain)]
    assert decode(list[schema], ["old", {"name": "new"}]) == [Leaf("old"), Leaf("new")]


def test_values_without_a_schema():
    value = [(1, (2.5,)), {"a": {3: b"\0"}}, {4}, frozenset({"x"}), None, np.float32(0.5)]
    plain = json.loads(json.dumps(tagged(value)))
    assert untagged(plain) == value
    with pytest.raises(DataError, match="is a Leaf, which is no plain value"):
        tagged([Leaf("x")])
    assert tagged([Leaf("x")], {}, repr) == ["Leaf(name='x', kind='a')"]
    known = {"Leaf": Leaf}
    assert untagged(tagged([Leaf("x")], known), known) == [Leaf("x")]


@pytest.mark.parametrize(
    "plain",
    [
        {"message": "Leaf", "fields": []},
        {"message": "Leaf", "fields": [["name", 3]]},
        {"message": "os", "fields": []},
        {"table": [[[], 1]]},
        {"table": 3},
        {"tuple": 3},
        {"bytes": "?"},
        {"a": 1, "b": 2},
        {},
    ],
)
def test_values_that_nobody_writes(plain):
    with pytest.raises(DataError):
        untagged(plain, {"Leaf": Leaf})


def test_bytes_stay_bytes():
    assert decode(bytes, base64.b64encode(b"\0").decode()) == b"\0"


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"a": 1},
        {"list": []},
        {"list": [{"x": [1, "]"]}, None, 3.5], "b": {"list": [1]}, "other": [1, 2]},
        {"b": "{[", "list": ["a, b", {}], "c": -1},
        {"list": {"no": "list"}},
    ],
)
def test_a_list_that_is_parsed_when_it_is_read(plain, indent):
    text = f" \n{json.dumps(plain, indent=indent)}\n"
    found = parse_object(text, ["list"])
    for _ in range(2):
        assert {
            name: list(value) if isinstance(value, decoding.LazyList) else value
            for name, value in found.items()
        } == plain
    assert decode(list[Any] | dict[str, Any], found.get("list", [])) == plain.get("list", [])


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "{}x", '{"a" 1}', '{"list": [1 2]}', '{"list": [1, ]}', '{"list": [1', '{"a": 1,}',
        '{"list": [1]', '{,"a": 1}', '{"list": ' + "[" * 100_000, '{"a": ' + "9" * 5000 + "}",
    ],
)  # fmt: skip
def test_what_is_no_object_is_refused_as_ever(text):
    with pytest.raises(DataError) as expected:
        parse(text)
    with pytest.raises(DataError) as found:
        parse_object(text, ["list"])
    assert str(found.value) == str(expected.value)


def test_a_list_is_no_object():
    with pytest.raises(DataError, match="is no JSON object"):
        parse_object("[1]", [])


def test_elements_that_are_wrong_are_named():
    found = parse_object('{"list": [1, "x"]}', ["list"])
    with pytest.raises(DataError, match=r"^\[1\] must be an integer"):
        decode(tuple[int, ...], found["list"])


def test_a_refused_member_of_a_union_leaves_nothing_behind():
    """Its traceback has everything that was being read."""
    schema = tuple[int, int] | list[str]
    assert decode(schema, ["a", "b"]) == ["a", "b"]
    gc.collect()
    gc.disable()
    try:
        assert decode(schema, ["a", "b"]) == ["a", "b"]
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_equal_names_are_one_object():
    one, other = decode(list[str], json.loads('["a name", "a name"]'))
    assert one is other
