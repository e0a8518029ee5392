"""``--pallas-sanitize``."""

from __future__ import annotations

import pytest

#: A kernel to which every sanitizer applies.
ALIASED = """
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def _body(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] + y_ref[...]

    def add_into(x, y):
        block = pl.BlockSpec((8, 128), lambda i: (0, i))
        return pl.pallas_call(
            _body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(x.shape[1] // 128,),
            in_specs=[block, block],
            out_specs=block,
            input_output_aliases={0: 0},
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        )(x, y)
"""


#: Two copies write the same to the same place, in no order: the answer is right.
TWICE = """
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def _body(x_ref, y_ref, o_ref, sum_ref, arrived):
        sum_ref[...] = x_ref[...] + y_ref[...]
        copies = [pltpu.make_async_copy(sum_ref, o_ref, arrived.at[i]) for i in range(2)]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait()

    def add_twice(x, y):
        return pl.pallas_call(
            _body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=[pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA((2,))],
        )(x, y)
"""


@pytest.mark.parametrize(
    ("flag", "mark", "races"),
    [
        ((), "", ["forward"]),
        (("--pallas-sanitize=none",), "", []),
        (("--pallas-sanitize=races",), "", ["forward"]),
        ((), "pytest.mark.pallas(sanitize='none')", []),
        (("--pallas-sanitize=none",), "pytest.mark.pallas(sanitize='races')", ["forward"]),
    ],
)
def test_a_selected_sanitizer_sets_its_detector_in_other_checks(project, flag, mark, races):
    """A sanitizer watches other checks, too, unless it is left out."""
    project.write(twice=TWICE)
    project.specs('name="add", kernel=__import__("twice").add_twice')
    if mark:
        project.write(
            conftest=f"""
            import pytest

            def pytest_collection_modifyitems(items):
                for item in items:
                    item.add_marker({mark})
            """
        )
    records = project.records(
        "--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-checks=forward",
        "--pallas-max-examples=1", *flag,
    )  # fmt: skip
    found = {record["check"]: record for record in records}
    # A sanitizer that is chosen by name runs besides the checks that are.
    assert [*found] == ["forward", *(name for name in ("races",) if name in str(flag))]
    failed = [name for name, record in found.items() if record["outcome"] == "failed"]
    assert failed == races  # of a kernel that raises, no other check is run
    for name in failed:
        assert [finding["kind"] for finding in found[name]["findings"]] == ["race"]


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("all", ["races", "dma", "deadlock", "schedule", "memory", "donation"]),
        ("none", []),
        ("donation,races", ["races", "donation"]),
    ],
)
@pytest.mark.parametrize("where", ["flag", "ini", "besides a check"])
def test_sanitizers_are_selected_by_name(project, where, value, names):
    project.write(aliased=ALIASED)
    project.specs('name="add", kernel=__import__("aliased").add_into')
    chosen = [f"-opallas_sanitize={value}" if where == "ini" else f"--pallas-sanitize={value}"]
    chosen += ["--pallas-checks=forward"] if where == "besides a check" else []
    result = project.run(
        "--pallas-suite=specs", "--pallas-backend=tpu-sim", "--collect-only", "-q", *chosen
    )
    found = [line for line in result.outlines if line.startswith("specs.py::add-")]
    sanitizers = {"races", "dma", "deadlock", "schedule", "memory", "donation"}
    asked = [line.removeprefix("specs.py::add-").partition("[")[0] for line in found]
    assert {name for name in asked if name in sanitizers} == {*names}
    assert "forward" in asked
