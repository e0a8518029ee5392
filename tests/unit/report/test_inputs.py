"""The line of inputs and the warnings below it, from records."""

from __future__ import annotations

from pytest_pallas.record import Aspect, Record, aspects_to_json
from pytest_pallas.report import inputs


def record(
    kernel="matmul", shapes=(), dtypes=(), tried=None, never=None, outcome="passed", test="a.py::t"
):
    plain = {"shapes": list(shapes), "signatures": 1, "dtypes": list(dtypes)}
    for title, texts in (("tried", tried or {}), ("never", never or {})):
        plain[title] = aspects_to_json({Aspect(*text.split()): texts[text] for text in texts})
    return Record(test=test, kernel=kernel, check="c", backend="b", outcome=outcome, inputs=plain)


FORWARD = record(
    shapes=["8", "9"],
    dtypes=["int8", "bfloat16"],
    tried={"dtype": ["int8", "bfloat16, int8"], "values": ["normal"], "dim m": ["one"],
           "dim d": ["fixed"], "option causal": ["True"]},
    never={"dim m": ["tile", "tile+1"], "option causal": ["False"]},
)  # fmt: skip
VMAP = record(
    shapes=["9", "10"],
    dtypes=["int8"],
    tried={"dtype": ["int8"], "values": ["normal"], "dim m": ["tile"], "option causal": ["True"]},
    never={"dtype": ["float32"], "dim m": ["one", "tile+1"], "option causal": ["False"]},
)


def test_checks_and_backends_count_together():
    (one,) = inputs.covered([FORWARD, VMAP])
    assert one.shapes == {"8", "9", "10"}
    assert {str(aspect): list(words) for aspect, words in one.never.items() if words} == {
        "dim m": ["tile+1"],
        "option causal": ["False"],
        "dtype": ["float32"],
    }


def test_the_summary_counts_drawn_inputs():
    """Shapes are counted for each kernel, dtypes of pairs apart; what is fixed is no boundary."""
    kernels = inputs.covered([FORWARD, VMAP, record(kernel="copy", shapes=["8"])])
    assert inputs.summary(kernels) == (
        "inputs: 2 kernels, 4 shapes, 2 dtypes, 1 value class, 2 of 3 boundary kinds, "
        "1 of 2 option values"
    )


def test_summary_of_calls_that_were_not_drawn():
    kernels = inputs.covered([record(shapes=["8"], dtypes=["int8"], tried={"dtype": ["int8"]})])
    assert inputs.summary(kernels) == "inputs: 1 kernel, 1 shape, 1 dtype"


def test_kernels_of_one_name_in_two_files():
    one, two = inputs.covered([record(test="a.py::t"), record(test="b.py::t")])
    assert one.kernel == two.kernel


def test_records_without_inputs_are_left_out():
    skipped = Record(test="t", kernel="k", check="c", backend="b", outcome="skipped")
    assert inputs.covered([skipped]) == []


def test_a_warning_names_what_was_never_drawn():
    assert inputs.warnings(inputs.covered([FORWARD, VMAP])) == [
        "never drawn: matmul: dim m tile+1; option causal False; dtype float32 "
        "(--pallas-max-examples draws more, --pallas-results lists all)"
    ]


def test_no_warning_if_all_was_drawn():
    rest = record(tried={"dtype": ["float32"], "dim m": ["tile+1"], "option causal": ["False"]})
    assert inputs.warnings(inputs.covered([FORWARD, VMAP, rest])) == []


def test_no_warning_where_every_check_failed():
    """What failed went no further; one check that went on is enough to speak of."""
    failed = record(never={"dtype": ["int8"]}, outcome="failed")
    assert inputs.warnings(inputs.covered([failed])) == []
    passed = record(never={"dtype": ["int8"]})
    assert len(inputs.warnings(inputs.covered([failed, passed]))) == 1


def test_many_words_are_cut():
    never = {"dim m": [f"{n}" for n in range(4)], "dim n": [f"{n}" for n in range(4, 9)]}
    (line,) = inputs.warnings(inputs.covered([record(never=never)]))
    assert line.startswith("never drawn: matmul: dim m 0, 1, 2, 3; dim n 4, 5; 3 more (")


def test_many_kernels_are_cut():
    lines = inputs.warnings(
        inputs.covered(record(kernel=f"k{n}", never={"dtype": ["int8"]}) for n in range(8))
    )
    assert len(lines) == 6
    assert lines[0] == "never drawn: k0: dtype int8"
    assert lines[-1].startswith("never drawn: choices of 3 more kernels (--pallas-max-examples")
