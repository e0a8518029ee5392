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


@pytest.mark.parametrize(
    ("flag", "mark", "notes"),
    [
        ((), "", ["races: on"]),
        (("--pallas-sanitize=none",), "", []),
        (("--pallas-sanitize=races",), "", ["races: on"]),
        ((), "@pytest.mark.pallas(sanitize='none')", []),
        (("--pallas-sanitize=none",), "@pytest.mark.pallas(sanitize='races')", ["races: on"]),
    ],
)
def test_races(project, flag, mark, notes):
    """The record says whether races were looked for."""
    project.specs(
        'name="add", kernel=add_sharded, reference=reference_on_mesh, meshes=({"x": 2},), '
        "inputs=lambda mesh: INPUTS"
    )
    if mark:
        project.write(
            conftest=f"""
            import pytest

            def pytest_collection_modifyitems(items):
                for item in items:
                    item.add_marker({mark.removeprefix("@")})
            """
        )
    record, *rest = project.records(
        "--pallas-suite=specs", "--pallas-backend=tpu-interpret", "--pallas-checks=forward",
        "--pallas-max-examples=1", *flag,
    )  # fmt: skip
    assert (record["check"], record["outcome"]) == ("forward", "passed")
    # A sanitizer that is chosen by name runs besides the checks that are.
    assert [each["check"] for each in rest] == [name for name in ("races",) if name in str(flag)]
    assert record["notes"] == notes


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("all", ["races", "dma", "deadlock", "schedule", "memory", "donation"]),
        ("none", []),
        ("donation,races", ["races", "donation"]),
    ],
)
@pytest.mark.parametrize("where", ["flag", "ini", "besides a check"])
def test_choice(project, where, value, names):
    project.write(aliased=ALIASED)
    project.specs('name="add", kernel=__import__("aliased").add_into')
    chosen = [f"-opallas_sanitize={value}" if where == "ini" else f"--pallas-sanitize={value}"]
    chosen += ["--pallas-checks=forward"] if where == "besides a check" else []
    result = project.run(
        "--pallas-suite=specs", "--pallas-backend=tpu-interpret", "--collect-only", "-q", *chosen
    )
    found = [line for line in result.outlines if line.startswith("specs.py::add-")]
    sanitizers = {"races", "dma", "deadlock", "schedule", "memory", "donation"}
    asked = [line.removeprefix("specs.py::add-").partition("[")[0] for line in found]
    assert {name for name in asked if name in sanitizers} == {*names}
    assert "forward" in asked
