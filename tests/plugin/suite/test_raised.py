"""A kernel that raises: one failure, and its other checks on that backend are not run."""

from __future__ import annotations

import pytest

SUITE = ("--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-max-examples=2")
RUN = (*SUITE, "--pallas-checks=forward,determinism,immutability,dtype")

NOT_RUN = "forward raised; see `refused-forward[tpu-sim]`"


def outcomes(records):
    return {record["check"]: (record["outcome"], record["reason"]) for record in records}


def test_after_the_kernel_raises_its_other_checks_do_not_run(project):
    project.specs('name="refused", kernel=add_raises', 'name="good", kernel=add')
    records = project.records(*RUN)
    assert outcomes(records[:4]) == {
        "forward": ("failed", ""),
        "determinism": ("skipped", NOT_RUN),
        "immutability": ("skipped", NOT_RUN),
        "dtype": ("skipped", NOT_RUN),
    }
    assert {record["outcome"] for record in records[4:]} == {"passed"}
    result = project.run(*RUN, "-ra")
    result.stdout.fnmatch_lines(["*1 failed, 4 passed, 3 not run in*"])
    text = result.stdout.str()
    assert "SKIPPED" not in text
    told = "forward raised; see `refused-forward[tpu-sim]`"
    assert f"not run (3) on tpu-sim: refused: {told}" in text


def test_each_backend_has_its_own(project):
    project.specs(
        'name="refused", kernel={"tpu": add_raises, "gpu": add}, '
        'backends=("tpu-sim", "gpu-interpret")'
    )
    records = project.records(*RUN, "--pallas-backend=tpu-sim,gpu-interpret")
    found = {(r["check"], r["backend"]): r["outcome"] for r in records}
    assert found["dtype", "tpu-sim"] == "skipped"
    assert found["dtype", "gpu-interpret"] == "passed"


def test_a_wrong_number_stops_nothing(project):
    project.specs('name="off", kernel=add_off')
    records = project.records(*RUN)
    assert [record["outcome"] for record in records] == ["failed", "passed", "passed", "passed"]


def test_expected_errors_are_not_run_one_by_one(project):
    """The first still has to fail. What is not expected to fail is run."""
    project.specs(
        'name="refused", kernel=add_raises, xfail={"tpu-sim": ExpectedFailure('
        'reason="#1", jax="0.12", checks=("forward", "determinism", "immutability"))}',
    )
    records = project.records(*SUITE, "--pallas-checks=forward,determinism,immutability,jit")
    assert outcomes(records) == {
        "forward": ("xfailed", "#1 (JAX 0.12)"),
        "determinism": ("skipped", NOT_RUN),
        "immutability": ("skipped", NOT_RUN),
        "jit": ("failed", ""),
    }


def test_the_day_that_it_works_is_noticed(project):
    project.specs(
        'name="mended", kernel=add, xfail={"tpu-sim": ExpectedFailure(reason="#1", jax="0.12")}'
    )
    records = project.records(*RUN)
    assert {record["outcome"] for record in records} == {"xpassed"}


@pytest.mark.parametrize(
    ("args", "first", "rest"),
    [
        (("--pallas-checks=determinism,immutability,jit",), "determinism", 2),
        ((*RUN[-1:], "-k", "not forward and not determinism"), "immutability", 1),
    ],
)
def test_without_forward_the_first_that_raises_takes_its_place(project, args, first, rest):
    project.specs('name="refused", kernel=add_raises')
    records = project.records(*SUITE, *args)
    assert (records[0]["check"], records[0]["outcome"]) == (first, "failed")
    reason = f"{first} raised; see `refused-{first}[tpu-sim]`"
    assert [record["reason"] for record in records[1:]] == [reason] * rest


def test_an_error_of_one_check_alone_stops_no_other(project):
    project.write(
        backward="""
        import jax
        from kernels import add

        @jax.custom_vjp
        def add_forward_only(x, y):
            return add(x, y)

        def _backward(_, gradient):
            raise ValueError("no backward kernel")

        add_forward_only.defvjp(lambda x, y: (add(x, y), None), _backward)
        """
    )
    project.specs(
        'name="half", kernel=__import__("backward").add_forward_only, differentiable=(0,)'
    )
    records = project.records(*SUITE, "--pallas-checks=gradient,determinism,jit")
    assert [record["outcome"] for record in records] == ["failed", "passed", "passed"]
    assert "no backward kernel" in records[0]["message"]


def test_last_failed_reruns_only_the_check_that_raised(project):
    project.specs('name="refused", kernel=add_raises')
    project.run(*RUN)
    result = project.run(*RUN, "--lf")
    result.assert_outcomes(failed=1, deselected=3)


def test_workers_find_out_for_themselves(project):
    """Wherever the items run, a worker reports one failure of the kernel at most."""
    project.specs('name="refused", kernel=add_raises')
    records = project.records(*RUN, "-n2")
    found = [record["outcome"] for record in records]
    assert len(found) == 4
    assert 1 <= found.count("failed") <= 3  # a worker, and forward wherever it comes
    assert found.count("failed") + found.count("skipped") == 4


def test_other_checks_stop_after_an_isolated_kernel_raises(project):
    project.specs('name="refused", kernel=add_raises')
    records = project.records(*RUN, "--pallas-isolate=always")
    assert [record["outcome"] for record in records] == ["failed", *["skipped"] * 3]
    assert records[1]["reason"] == NOT_RUN
    assert records[1]["stopped_by"] == "refused-forward[tpu-sim]"
