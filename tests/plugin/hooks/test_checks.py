"""``pytest_pallas_checks``."""

from __future__ import annotations

import pytest

CONFTEST = """
    from pytest_pallas import Check

    def _run(context):
        from pytest_pallas.checks.context import CheckResult, run
        from pytest_pallas import MismatchError

        outcome = run(context, context.kernel, context.arguments.args)
        if (outcome.values < 0).any():
            raise MismatchError("negative")
        return CheckResult(comparisons=[], outcome=outcome, seconds=0.25)

    def _of_one_sign(spec):
        return None if spec.name.startswith("positive") else "only positive kernels promise it"

    def pytest_pallas_checks(config):
        return [Check(name="positive", asks="is it above 0?", run=_run, requires_spec=_of_one_sign,
                      example_fraction=0.5)]
"""


def texts(record):
    """The texts of a record's notes."""
    return [note["text"] for note in record["notes"]]


def test_specs_and_tests_of_ones_own(project):
    project.specs(
        'name="positive_add", kernel=add, checks=("positive", "forward"), '
        'inputs=pst.arrays("n, n", dtype="uint8", dims={"n": [128, 256, 512]}, '
        'values="integers")',
        'name="other", kernel=add',
    )
    project.write(
        conftest=CONFTEST,
        test_own="""
        import numpy as np
        from kernels import *

        def test_negative(pallas_check):
            x = -np.ones((8, 128), np.float32)
            pallas_check(add, x, x, reference=reference, checks="positive")
        """,
    )
    records = project.records(
        "--pallas-suite=specs", "test_own.py", "--pallas-backend=interpret",
        "--pallas-checks=positive", "--pallas-max-examples=4",
    )  # fmt: skip
    assert [(r["kernel"], r["check"], r["outcome"], r["examples"]) for r in records] == [
        ("add", "positive", "failed", 1),
        ("positive_add", "positive", "passed", 2),
    ]
    assert "add: positive on interpret: negative" in records[0]["message"]


def test_where_it_can_be_asked(project):
    """``requires_backend`` gets the backend, ``requires_peers`` those that came before it."""
    project.specs('name="add", kernel=add')
    project.write(
        conftest="""
        from pytest_pallas import Check

        def _run(context):
            from pytest_pallas.checks.context import CheckResult

            return CheckResult(comparisons=[], notes=tuple(other.name for other in context.others))

        def pytest_pallas_checks(config):
            rest = {"asks": "?", "run": _run}
            return [
                Check(
                    name="some",
                    requires_backend=lambda backend: (
                        None if backend.name == "interpret" else "elsewhere"
                    ),
                    **rest,
                ),
                Check(
                    name="second",
                    requires_peers=lambda spec, others: (
                        None if len(others) == 1 else "not the second"
                    ),
                    **rest,
                ),
            ]
        """
    )
    words = ("--pallas-suite=specs", "--pallas-checks=some,second", "--pallas-max-examples=1")
    backends = "--pallas-backend=interpret,tpu-interpret:v5e,tpu-interpret:v6e"
    records = project.records(*words, backends)
    assert [(r["check"], r["backend"], texts(r)) for r in records] == [
        ("some", "interpret", []),
        ("second", "tpu-interpret:v5e", ["interpret"]),
    ]
    project.specs('name="add", kernel=add, checks=("some", "second")')
    found = project.results(*words, backends)
    assert len(found["records"]) == 2
    assert [(e["check"], e["backend"], e["requirement"]) for e in found["not_applicable"]] == [
        ("second", "interpret", "not the second"),
        ("some", "tpu-interpret:v5e", "elsewhere"),
        ("some", "tpu-interpret:v6e", "elsewhere"),
        ("second", "tpu-interpret:v6e", "not the second"),
    ]


@pytest.mark.parametrize(
    ("failing", "peers"), [("forward", []), ("peers", []), ("cross", ["interpret"])]
)
def test_a_backend_is_a_peer_where_the_check_is_expected_to_pass(project, failing, peers):
    failure = f"ExpectedFailure(reason='known', jax='0.12', checks=({failing!r},))"
    project.specs(f'name="add", kernel=add, checks=("peers",), xfail={{"interpret": {failure}}}')
    project.write(
        conftest="""
        from pytest_pallas import Check

        def _run(context):
            from pytest_pallas.checks.context import CheckResult

            return CheckResult(comparisons=[], notes=tuple(other.name for other in context.others))

        def pytest_pallas_checks(config):
            return [Check(name="peers", asks="?", run=_run)]
        """
    )
    records = project.records(
        "--pallas-suite=specs", "--pallas-checks=peers", "--pallas-max-examples=1",
        "--pallas-backend=interpret,tpu-interpret",
    )  # fmt: skip
    [notes] = [texts(record) for record in records if record["backend"] == "tpu-interpret"]
    assert notes == peers


def test_it_is_among_the_valid_ones(project):
    project.write(conftest=CONFTEST)
    result = project.run("--pallas-checks=nope")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert ", positive" in result.stderr.str()


SANITIZER = """
    from pytest_pallas import Check

    def _run(context):
        from pytest_pallas.checks.context import CheckResult

        return CheckResult(comparisons=[], notes=(f"dma: {context.settings.dma}",))

    def pytest_pallas_checks(config):
        return [
            Check(name="heat", asks="?", run=_run, kind="sanitizer", watches="dma"),
            Check(name="rare", asks="?", run=_run, kind="sanitizer", opt_in=True),
        ]
"""


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--pallas-checks=heat,rare", "--pallas-sanitize=all"), ["heat", "rare"]),
        (("--pallas-checks=none", "--pallas-sanitize=heat"), ["heat"]),
        (("--pallas-checks=none", "--pallas-sanitize=rare"), ["rare"]),
        (("--pallas-checks=heat", "--pallas-sanitize=none"), []),
    ],
)
def test_a_sanitizer_of_a_project_sets_its_detector_in_all_runs(project, options, found):
    """It is chosen like those of this package, and sets what it watches in the runs of all."""
    project.specs('name="add", kernel=add, checks=("heat", "rare")')
    project.write(conftest=SANITIZER)
    records = project.records(
        "--pallas-suite=specs", "--pallas-backend=interpret", "--pallas-max-examples=1", *options
    )
    assert [record["check"] for record in records] == found
    notes = {note for record in records for note in texts(record)}
    assert notes == ({f"dma: {'heat' in found}"} if found else set())


def test_an_unknown_sanitizer(project):
    project.write(conftest=SANITIZER)
    result = project.run("--pallas-sanitize=nope")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "device, synchronization, heat, rare" in result.stderr.str()
