"""A check whose examples could not have shown anything does not count as passed."""

from __future__ import annotations

import textwrap

import pytest

SPECS = """
    import functools, jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu
    from pytest_pallas import KernelSpec, strategies as pst

    def body(x_ref, o_ref, buffers, loaded, stored, *, steps, racy):
        def load(i):
            rows = pl.ds(pl.multiple_of(i * 8, 8), 8)
            return pltpu.make_async_copy(x_ref.at[rows], buffers.at[i % 2], loaded.at[i % 2])

        load(0).start()

        def step(i, _):
            @pl.when(i + 1 < steps)
            def _():
                load(i + 1).start()

            if not racy:
                load(i).wait()
            rows = pl.ds(pl.multiple_of(i * 8, 8), 8)
            out = pltpu.make_async_copy(buffers.at[i % 2], o_ref.at[rows], stored)
            if racy:
                load(i).wait()
            out.start()
            if not racy:
                out.wait()
            return 0

        jax.lax.fori_loop(0, steps, step, 0)
        if racy:
            for _ in range(steps):
                pltpu.make_async_copy(buffers.at[0], o_ref.at[pl.ds(0, 8)], stored).wait()

    def copied(x, *, racy=RACY):
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            functools.partial(body, steps=x.shape[0] // 8, racy=racy),
            in_specs=[anywhere], out_specs=anywhere, out_shape=x,
            scratch_shapes=[pltpu.VMEM((2, 8, x.shape[1]), x.dtype),
                            pltpu.SemaphoreType.DMA((2,)), pltpu.SemaphoreType.DMA],
        )(x)

    def added(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1

    def plus(x):
        spec = pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0))
        grid = (x.shape[0] // 8,)
        return pl.pallas_call(added, grid=grid, in_specs=[spec], out_specs=spec, out_shape=x)(x)

    MANY = dict(inputs=pst.arrays("m n; m = 8*k", dims={"k": KS, "n": 128}))
    COPIED = KernelSpec(name="copied", kernel=copied, reference=lambda x: x, **MANY)
    PLUS = KernelSpec(name="plus", kernel=plus, reference=lambda x: x + 1, **MANY)
"""

QUICK = ("--pallas-suite=specs", "--pallas-profile=quick", "--pallas-backend=tpu-sim")


def outcomes(project, *checks, racy=False, blocks="[1]"):
    text = textwrap.dedent(SPECS).replace("RACY", str(racy)).replace("KS", blocks)
    (project.path / "specs.py").write_text(text)
    records = project.records(*QUICK, f"--pallas-checks={','.join(checks)}")
    return {(each["kernel"], each["check"]): each for each in records}


@pytest.mark.parametrize("racy", [False, True])
def test_sanitizers_say_that_one_turn_shows_nothing(project, racy):
    found = outcomes(project, "races", "schedule", "deadlock", racy=racy)
    for check in ("races", "schedule", "deadlock"):
        record = found["copied", check]
        assert (record["outcome"], record["examples"]) == ("skipped", 0)
        assert record["requirement"].startswith("the loop of body over its copies has one turn")


def test_the_grid_says_that_one_program_shows_nothing(project):
    record = outcomes(project, "grid")["plus", "grid"]
    assert record["outcome"] == "skipped"
    assert record["requirement"] == "added has one program: grid (1,); draw larger inputs"


def test_examples_that_show_something_count(project):
    found = outcomes(project, "races", "grid", blocks="[1, 2, 5]")
    assert found["copied", "races"]["outcome"] == "passed"
    assert found["plus", "grid"]["outcome"] == "passed"


def test_a_buffer_that_is_loaded_while_it_is_stored_is_a_race(project):
    found = outcomes(project, "races", racy=True, blocks="[5]")
    assert found["copied", "races"]["outcome"] == "failed"
