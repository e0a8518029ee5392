"""What a spec declares to be compared with: other backends, implementations, relations."""

from __future__ import annotations

CROSS = ("--pallas-suite=specs", "--pallas-checks=cross", "--pallas-max-examples=1")
THREE = "--pallas-backend=interpret,tpu-interpret:v5e,tpu-interpret:v6e"


def collected(result):
    return [line for line in result.outlines if line.startswith("specs.py::")]


def test_a_pair_of_backends_is_asked_once(project):
    project.specs('name="add", kernel=add')
    result = project.run(*CROSS, THREE, "--collect-only", "-q")
    assert collected(result) == [
        "specs.py::add-cross[tpu-interpret:v5e]",
        "specs.py::add-cross[tpu-interpret:v6e]",
    ]
    project.run(*CROSS, THREE).assert_outcomes(passed=2)
    nothing = project.run(*CROSS, "--pallas-backend=interpret", "--collect-only", "-q")
    assert not collected(nothing)


def test_a_backend_of_the_other_platform_runs_its_own_kernel(project):
    """The kernel of each platform is another one: here the one for GPUs is wrong."""
    project.write(
        kernels_gpu="""
        from kernels import add_off

        def off(x, y):
            return add_off(x, y)
        """
    )
    project.specs(
        'name="add", kernel={"tpu": add, "gpu": __import__("kernels_gpu").off}, '
        'backends=("interpret", "gpu-interpret")'
    )
    records = project.records(*CROSS, "--pallas-backend=interpret,gpu-interpret")
    assert [(r["backend"], r["outcome"]) for r in records] == [("gpu-interpret", "failed")]
    assert "one of two differs from the oracle: gpu-interpret by" in records[0]["message"], records[
        0
    ]["message"]


def test_a_backend_that_is_expected_to_fail_is_left_out(project):
    project.specs(
        'name="add", kernel=add, xfail={"interpret": ExpectedFailure(reason="#1", jax="0.12", '
        'checks=("forward",))}',
        'name="more", kernel=add, xfail={"tpu-interpret:v6e": ExpectedFailure(reason="#1", '
        'jax="0.12")}',
    )
    result = project.run(*CROSS, THREE, "--collect-only", "-q")
    assert collected(result) == [
        "specs.py::add-cross[tpu-interpret:v6e]",
        "specs.py::more-cross[tpu-interpret:v5e]",
    ]


def test_on_a_mesh(project):
    project.specs(
        'name="add", kernel=add_sharded, reference=reference_on_mesh, inputs=lambda mesh: INPUTS, '
        'meshes=({"x": 2},), implementations={"jnp": reference_on_mesh}'
    )
    backends = "--pallas-backend=tpu-interpret:v5e,tpu-interpret:v6e"
    project.run(*CROSS, backends, "-v").assert_outcomes(passed=2)


def test_cross_names_the_wrong_implementation(project):
    project.specs('name="add", kernel=add, implementations={"right": reference, "wrong": add_off}')
    records = project.records(*CROSS, "--pallas-backend=interpret")
    assert [r["outcome"] for r in records] == ["failed"]
    message = records[0]["message"]
    assert "cross on interpret (one of two differs from the oracle: wrong by" in message
    assert "output of wrong, float32[8, 128]" in message
    project.specs('name="add", kernel=add, implementations={"right": reference}')
    project.run(*CROSS, "--pallas-backend=interpret").assert_outcomes(passed=1)


def test_relations_of_a_spec_are_checked(project):
    project.specs(
        'name="both", kernel=add, relations=(Linear((0, 1)), Permuted({0: 1, 1: 1}, output=1), '
        'Relation("same", lambda arguments, rng: arguments))',
        'name="one", kernel=add, relations=(Linear(0), Permuted({0: 0}, output=0), '
        'Relation("other", lambda arguments, rng: arguments, lambda y, _: y + 1))',
        'name="beyond", kernel=add, relations=(Linear(2),)',
    )
    specs = project.path / "specs.py"
    specs.write_text("from pytest_pallas import Linear, Permuted, Relation\n" + specs.read_text())
    checks = "--pallas-checks=linearity,permutation,relation"
    words = ("--pallas-suite=specs", "--pallas-backend=interpret", "--pallas-max-examples=4")
    records = project.records(checks, *words)
    assert {(r["kernel"], r["check"]): r["outcome"] for r in records} == {
        (kernel, check): outcome
        for kernel, outcome in (("both", "passed"), ("one", "failed"))
        for check in ("linearity", "permutation", "relation")
    }
    result = project.run(checks, *words)
    result.stdout.fnmatch_lines(["*Linear names argument 2, but its inputs draw 2 positional*"])


def test_relations_are_asked_about_draws_for_which_they_hold(project):
    """One example each, and the draws that come first are of the wrong size."""
    project.specs(
        'name="never", kernel=add, relations=(Permuted({0: 0, 1: 0}, output=0, when=_of(0)),)',
        *(
            f'name="wrong_{rows}", kernel=add, relations=('
            f"Permuted({{0: 0, 1: 0}}, output=0, when=_of({9 - rows})), "
            f"Permuted({{0: 0}}, output=0, when=_of({rows})))"
            for rows in (4, 5)
        ),
    )
    specs = project.path / "specs.py"
    own = "def _of(rows):\n    return lambda arguments: arguments.args[0].shape[0] == rows\n"
    drawn = 'INPUTS = pst.arrays("m k, m k", dtype="float32", dims={"m": [1, 2, 4, 5], "k": 8})\n'
    source = specs.read_text().replace("SPEC_0 =", drawn + own + "SPEC_0 =")
    specs.write_text("from pytest_pallas import Permuted\n" + source)
    words = ("--pallas-checks=permutation", "--pallas-suite=specs", "--pallas-backend=interpret")
    records = project.records(*words, "--pallas-max-examples=8")
    assert {r["kernel"]: r["outcome"] for r in records} == {
        "never": "skipped",
        "wrong_4": "failed",
        "wrong_5": "failed",
    }
    (reason,) = (r["reason"] for r in records if r["kernel"] == "never")
    assert "no Permuted of the spec holds for the drawn call" in reason
