"""``verify``: its stages, what it says of a task, and its command."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import pytest_pallas
from pytest_pallas import OptionError, Report, verify, verify_many
from pytest_pallas import strategies as pst
from pytest_pallas.__main__ import main
from pytest_pallas.candidates.source import CandidateSource
from pytest_pallas.candidates.task import other_options
from pytest_pallas.candidates.verdicts import WEIGHTS, Stage, score_of, to_json
from pytest_pallas.candidates.work import work_of

SIM = ("tpu-sim:v6e",)

SOURCE = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl

def like(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)

def scaled(x, *, factor=2.0, rows=8):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * factor
    spec = pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        body, grid=(pl.cdiv(x.shape[0], rows),), in_specs=[spec], out_specs=spec, out_shape=like(x)
    )(x)

def forgets_rows(x, *, factor=2.0, rows=8):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * factor
    spec = pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        body, grid=(max(x.shape[0] // rows, 1),), in_specs=[spec], out_specs=spec, out_shape=like(x)
    )(x)

def only_doubles(x):
    return scaled(x)

def ignores_factor(x, factor=2.0):
    return scaled(x)

def only_float32(x):
    return scaled(x).astype(jnp.float32)

def wrong_in_bfloat16(x):
    return scaled(x, factor=2.0 if x.dtype == jnp.float32 else 3.0)

@jax.custom_vjp
def squared(x):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * x_ref[...]
    return pl.pallas_call(body, out_shape=like(x))(x)

squared.defvjp(lambda x: (squared(x), x), lambda x, g: (2 * x * g,))

@jax.custom_vjp
def wrong_gradient(x):
    return squared(x)

wrong_gradient.defvjp(lambda x: (squared(x), x), lambda x, g: (x * g,))

def on_gpu(x):
    from jax.experimental.pallas import mosaic_gpu as plgpu

    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2
    return plgpu.kernel(body, out_type=like(x))(x)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("candidates") / "kernels.py"
    path.write_text(SOURCE)
    return path


def doubled(x: Any, factor: float = 2.0) -> Any:
    return x * factor


def judge(file: Path, *names: str, reference: Any = doubled, **options: Any) -> list[Report]:
    candidates = [f"{file}:{name}" for name in names]
    settings: dict[str, Any] = {"targets": SIM, "seed": 3, "hidden": 4, "inputs": "m n", **options}
    return list(verify_many(candidates, reference, **settings))


def test_a_report_has_all_that_a_program_needs(file: Path) -> None:
    right, wrong = judge(file, "scaled", "forgets_rows", sizes={"m": 16, "n": 128})
    assert right.passed
    assert (right.status, right.score, right.reason) == (0, 1.0, "")
    assert not wrong.passed
    assert wrong.failed is not None
    assert (wrong.failed.name, wrong.reason, wrong.status) == ("hidden", "wrong answer", 1)
    assert 0 < wrong.failed.share < 1
    example = wrong.counterexamples[0]
    rows, columns = example.shapes[0]
    assert rows % 8
    assert example.index[0] >= rows - rows % 8
    assert example.dtypes == ("float32",)
    assert example.seed == wrong.seed == 3
    assert "never written" in example.cause
    assert "no program" in example.block
    assert example.line.startswith(f"{file}:")
    facts = json.loads(json.dumps(to_json(wrong), allow_nan=False))
    assert facts["counterexamples"][0]["shapes"] == [[rows, columns]]
    assert facts["reason"] == "wrong answer"
    assert right.digest != wrong.digest
    assert wrong.in_force
    assert "wrong answer" in str(wrong)


def test_later_stages_run_if_they_are_to(file: Path) -> None:
    (report,) = judge(file, "forgets_rows", stop=False)
    verdicts = {stage.name: stage.verdict for stage in report.stages}
    assert verdicts["hidden"] == "failed"
    assert verdicts["deterministic"] == verdicts["cost"] == "passed"
    (stopped,) = judge(file, "forgets_rows")
    assert [s.verdict for s in stopped.stages if s.name == "cost"] == ["not run"]
    assert stopped.score < report.score < 1


def test_the_same_seed_judges_the_same_calls(file: Path) -> None:
    first, second = (judge(file, "scaled")[0] for _ in range(2))
    assert first.programs == second.programs
    assert first.digest == second.digest
    assert judge(file, "scaled", seed=4)[0].programs != first.programs


def test_gradients_are_judged_where_they_are_asked_for(file: Path) -> None:
    options: dict[str, Any] = {"reference": lambda x: x * x, "differentiable": (0,)}
    right, wrong = judge(file, "squared", "wrong_gradient", **options)
    assert right.passed, str(right)
    assert wrong.failed is not None
    assert wrong.failed.name == "gradients"
    assert not judge(file, "wrong_gradient", reference=options["reference"])[0].failed


def test_options_reach_candidate_and_reference(file: Path) -> None:
    (report,) = judge(file, "scaled", options={"factor": 3.0})
    assert report.passed, str(report)
    with pytest.raises(OptionError, match="numbers and texts"):
        judge(file, "scaled", options={"factor": jnp.ones(3)})


def test_a_strategy_draws_options_and_tuning(file: Path) -> None:
    inputs = pst.arguments(
        pst.arrays("m n", dtype="float32", dims={"m": [8, 20], "n": 128}),
        options={"factor": st.sampled_from([2.0, 3.0])},
        tuning={"rows": st.sampled_from([8, 16])},
    )
    right, wrong = judge(file, "scaled", "forgets_rows", inputs=inputs)
    assert right.passed, str(right)
    assert wrong.reason == "wrong answer"
    assert wrong.counterexamples[0].options["rows"] in (8, 16)


def test_options_of_the_reference_are_drawn_where_the_candidate_has_them(file: Path) -> None:
    right, without, wrong = judge(file, "scaled", "only_doubles", "ignores_factor")
    assert right.passed, str(right)
    assert right.unserved == ()
    assert without.passed, str(without)
    assert any("factor=3.0" in sentence for sentence in without.unserved)
    assert (wrong.failed and wrong.failed.name, wrong.reason) == ("hidden", "wrong answer")
    assert wrong.counterexamples[0].options == {"factor": 3.0}


def test_other_dtypes_are_drawn_where_the_candidate_serves_them(file: Path) -> None:
    (right,) = judge(file, "only_float32")
    assert right.passed, str(right)
    assert [s for s in right.unserved if s.startswith("bfloat16: the result has the dtype float32")]
    options: dict[str, Any] = {"inputs": [np.ones((8, 128), np.float32)]}
    (wrong,) = judge(file, "wrong_in_bfloat16", **options)
    assert (wrong.failed and wrong.failed.name, wrong.reason) == ("hidden", "wrong answer")
    assert {example.dtypes for example in wrong.counterexamples} == {("bfloat16",)}
    (unasked,) = judge(file, "wrong_in_bfloat16", hidden_dtypes=(), **options)
    assert unasked.passed, str(unasked)


def test_options_are_told_by_a_signature() -> None:
    def reference(
        x: Any, count: int = 4, eps: float = 1e-6, causal: bool = False,
        kind: Literal["sum", "mean"] = "sum", axis: int = -1, out: Any = None,
    ) -> Any: ...  # fmt: skip

    drawn = dict(other_options(reference, 1, {}))
    assert drawn == {"count": 2, "eps": 0.125, "causal": True, "kind": "mean"}
    assert dict(other_options(reference, 1, {"causal": True}))["causal"] is False
    assert "causal" not in dict(other_options(functools.partial(reference, causal=True), 1, {}))
    assert dict(other_options(print, 1, {})) == {"flush": True}
    assert dict(other_options(min, 1, {})) == {}


def test_a_task_is_evaluated_once_for_all_candidates(file: Path) -> None:
    def evaluations(*names: str) -> int:
        calls: list[Any] = []

        def reference(x: Any) -> Any:  # a new one each time: JAX keeps traces
            calls.append(x)
            return x * 2

        judge(file, *names, reference=reference)
        return len(calls)

    assert evaluations("scaled") == evaluations("scaled", "only_doubles", "scaled")


def test_the_programs_of_a_report_are_functions(file: Path) -> None:
    (report,) = judge(file, "scaled", inputs=[np.ones((8, 128), np.float32)])
    function = report.functions["tpu-sim:v6e float32[8, 128]"]
    jaxpr = jax.make_jaxpr(function)(np.ones((8, 128), np.float32))
    assert "pallas_call" in str(jaxpr)
    assert "functions" not in to_json(report)


def test_a_spec_stands_for_a_task(file: Path) -> None:
    spec = pytest_pallas.KernelSpec(
        name="doubled", kernel=doubled, reference=doubled, inputs=pst.arrays("m n")
    )
    assert verify(f"{file}:scaled", spec=spec, targets=SIM, hidden=2, seed=1).passed


def test_arrays_give_shapes_and_zeros_are_replaced(file: Path) -> None:
    (report,) = judge(file, "scaled", inputs=[np.zeros((16, 128), np.float32)])
    assert report.passed
    assert any("zeros were replaced" in sentence for sentence in report.task)


def test_gpu_candidates_are_judged_on_a_gpu(file: Path) -> None:
    (report,) = judge(file, "on_gpu", targets=("gpu-sim:h100",), inputs=[np.ones(128, np.float32)])
    assert report.passed, str(report)


TRITON = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

def kernel(x, masked=True, block=128):
    n = x.shape[0]
    def body(x_ref, o_ref):
        at = pl.program_id(0) * block + jnp.arange(block)
        mask = at < n if masked else None
        plt.store(o_ref.at[at], plt.load(x_ref.at[at], mask=mask) * 2, mask=mask)
    return pl.pallas_call(
        body,
        grid=(pl.cdiv(n, block),),
        in_specs=[pl.no_block_spec],
        out_specs=pl.no_block_spec,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=plt.CompilerParams(num_warps=4),
    )(x)

def unmasked(x):
    return kernel(x, masked=False)
"""


def test_candidates_of_the_triton_route_too(tmp_path: Path) -> None:
    path = tmp_path / "triton_kernels.py"
    path.write_text(TRITON)
    options: dict[str, Any] = {"targets": ("gpu-sim:a100",), "inputs": "n"}
    right, wrong = judge(path, "kernel", "unmasked", **options)
    assert right.passed, str(right)
    assert wrong.reason == "out of bounds"
    assert wrong.counterexamples[0].line == f"{path}:11"


def test_a_compiler_that_is_not_there_does_not_count(file: Path) -> None:
    (report,) = judge(file, "scaled", targets=(*SIM, "gpu-compile:h100"))
    assert report.passed
    (stage,) = [stage for stage in report.stages if stage.name == "compiles"]
    assert stage.verdict == "not applicable"


# The task.


def test_a_reference_that_ignores_an_argument_is_reported(file: Path) -> None:
    (report,) = judge(file, "scaled", reference=lambda x, y=0: x * 2, inputs="m n")
    assert report.task == ()
    text = SOURCE + "\ndef second(x, y):\n    return scaled(x)\n"
    source = CandidateSource(name="second", files={"c.py": text}, module="c.py", function="second")
    (report,) = verify_many([source], lambda x, y: x * 2, "m n, m n", targets=SIM, hidden=2, seed=1)
    assert report.passed
    assert "does not depend on argument 1" in report.task[0]


@pytest.mark.parametrize("reference", [lambda x: jnp.ones_like(x), lambda x: x * 1e-38])
def test_a_task_that_tells_nothing_is_not_judged(file: Path, reference: Any) -> None:
    (report,) = judge(file, "scaled", reference=reference)
    assert report.undecided
    assert report.status == 3
    assert not report.passed
    assert report.score == 0


def test_a_reference_that_raises_is_an_error_of_the_judge(file: Path) -> None:
    with pytest.raises(pytest_pallas.KernelReferenceError, match="ZeroDivisionError"):
        judge(file, "scaled", reference=lambda x: 1 / 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": ("interpret",)}, "neither a simulator"),
        ({"targets": ("tpu-compile:v6e",)}, "is a simulator"),
        ({"inputs": 3}, "inputs must be"),
        ({"sizes": {"k": 3}}, "no size 'k'"),
        ({"inputs": None}, "give a reference and inputs"),
        ({"budget": 0}, "budget=0"),
        ({"hidden": -1}, "hidden=-1"),
        ({"differentiable": (1,)}, "no argument 1"),
    ],
)
def test_arguments_that_cannot_be_used(file: Path, options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        judge(file, "scaled", **options)


def test_an_unknown_argument_is_a_type_error(file: Path) -> None:
    with pytest.raises(TypeError, match="'hiddens'"):
        judge(file, "scaled", hiddens=3)


def test_functions_of_modules_are_found_by_their_source(file: Path) -> None:
    def inner(x: Any) -> Any:
        return x

    with pytest.raises(OptionError, match="inside of a function"):
        verify(inner, doubled, "m n")
    with pytest.raises(OptionError, match="no source file"):
        verify(print, doubled, "m n")
    with pytest.raises(OptionError, match="there is no file"):
        verify("nothing.py:f", doubled, "m n")
    with pytest.raises(OptionError, match=r"FILE\.py:FUNCTION"):
        verify(str(file), doubled, "m n")


# Scores and work.


def test_the_weights_are_a_score() -> None:
    assert sum(WEIGHTS.values()) == pytest.approx(1)
    passed = tuple(Stage(name=name, verdict="passed") for name in WEIGHTS)
    assert score_of(passed) == 1
    half = (*passed[:4], Stage(name="given", verdict="failed", share=0.5), *passed[5:])
    assert score_of(half) == pytest.approx(1 - WEIGHTS["given"] / 2)
    assert score_of(tuple(Stage(name=name, verdict="not run") for name in WEIGHTS)) == 0


def test_work_is_counted_where_it_is_done() -> None:
    from jax.experimental import pallas as pl

    def function(x: Any, w: Any) -> Any:
        def body(x_ref: Any, w_ref: Any, o_ref: Any) -> None:
            o_ref[...] = jnp.dot(x_ref[...], w_ref[...])

        out = jax.ShapeDtypeStruct((16, 128), np.float32)
        y = pl.pallas_call(
            body,
            grid=(2,),
            in_specs=[
                pl.BlockSpec((8, 128), lambda i: (i, 0)),
                pl.BlockSpec((128, 128), lambda i: (0, 0)),
            ],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
            out_shape=out,
        )(x, w)
        return y + 1

    args = np.ones((16, 128), np.float32), np.ones((128, 128), np.float32)
    work = work_of(jax.make_jaxpr(function)(*args), args, "v6e", 10.0)
    assert work.inside == 2 * 16 * 128 * 128
    assert work.outside == 16 * 128
    assert work.kernels == 1


# The command.


def test_the_command_prints_and_writes(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = tmp_path / "reference.py"
    reference.write_text("def ref(x, factor=2.0):\n    return x * factor\ndef bad(x):\n    1 / 0\n")
    out = tmp_path / "out.json"

    def run(name: str, *more: str, ref: str = "ref") -> int:
        common = ["--inputs", "m n", "--target", "tpu-sim:v6e", "--hidden", "4", "--seed", "3"]
        return main(
            ["verify", f"{file}:{name}", "--reference", f"{reference}:{ref}", *common, *more]
        )

    assert run("scaled", "--option", "factor=3.0") == 0
    assert "scaled: passed" in capsys.readouterr().out
    assert run("forgets_rows", "--json", str(out)) == 1
    facts = json.loads(out.read_text())
    assert (facts["status"], facts["reason"]) == (1, "wrong answer")
    assert run("scaled", "--size", "m=x") == 2
    assert run("scaled", "--target", "v99") == 2
    assert run("scaled", ref="nothing") == 2
    assert run("scaled", "--budget", "0") == 2
    assert run("scaled", "--dtype", "floaty") == 2
    assert run("scaled", "--inputs", "m (") == 2
    assert run("scaled", "--json", str(out), ref="bad") == 3
    facts = json.loads(out.read_text())
    assert (facts["status"], facts["passed"]) == (3, False)
    assert "ZeroDivisionError" in facts["undecided"]
    capsys.readouterr()


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.py"
    with path.open("wb") as file:
        file.truncate(100 << 20)
    report = verify(f"{path}:kernel", doubled, "m n", targets=SIM, hidden=2, seed=1)
    assert (report.reason, report.status, report.score) == ("too large", 1, 0)
    assert report.failed is not None
    assert "100 MiB" in report.failed.sentence


def test_bytes_that_are_no_text_are_no_python(tmp_path: Path) -> None:
    path = tmp_path / "bytes.py"
    path.write_bytes(bytes(range(1, 256)))
    report = verify(f"{path}:kernel", doubled, "m n", targets=SIM, hidden=2, seed=1)
    assert report.failed is not None
    assert report.failed.name == "imports"


UNUSUAL = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

def positive(x, body, **options):
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), **options)(x)

def keeps_nan(x, factor=1, scratch=()):
    def body(x_ref, o_ref, *scratch):
        o_ref[...] = factor * jnp.maximum(x_ref[...], 0)
    return positive(x, body, scratch_shapes=scratch)

def drops_nan(x):
    def body(x_ref, o_ref):
        o_ref[...] = jnp.where(x_ref[...] > 0, x_ref[...], 0)
    return positive(x, body)

def wrong_if_large(x):
    return keeps_nan(x, 1 if x.size <= 65536 else 2)

def too_large(x):
    return keeps_nan(x, scratch=[pltpu.VMEM((200 * x.size,), jnp.float32)] * (x.size > 65536))
"""


def test_large_arrays_and_unusual_numbers(tmp_path: Path) -> None:
    names = ("keeps_nan", "drops_nan", "wrong_if_large", "too_large")
    path = tmp_path / "unusual.py"
    path.write_text(UNUSUAL)
    keeps, drops, wrong, large = judge(
        path, *names, reference=lambda x: jnp.maximum(x, 0), sizes={"m": 8, "n": 128}
    )
    assert (keeps.passed, keeps.unusual, keeps.unserved) == (True, (), ())
    assert drops.passed
    assert drops.unusual[0].startswith("NaN in argument 0: of ")
    assert "1 are finite" in drops.unusual[0]
    assert "unusual: NaN" in str(drops)
    assert (wrong.passed, wrong.reason) == (False, "wrong answer")
    assert np.prod(wrong.counterexamples[0].shapes[0]) > 65536
    assert large.passed
    assert "VMEM" in large.unserved[0]


def test_the_properties_of_a_spec_count(file: Path) -> None:
    """A relation sees what a wrong reference hides; calls with options have none."""

    def factors(with_options: bool) -> pytest_pallas.KernelSpec:
        arrays = pst.arrays("m n", dims={"m": [8, 16], "n": [128]}, dtype="float32")
        options = {"options": {"factor": st.just(2.0)}} if with_options else {}
        return pytest_pallas.KernelSpec(
            name="scaled",
            kernel=doubled,
            reference=doubled,
            inputs=pst.arguments(arrays, **options),
            relations=[
                pytest_pallas.Relation(
                    name="negated",
                    change=lambda call, rng: pytest_pallas.Arguments(tuple(-x for x in call.args)),
                    expect=lambda outputs, call: outputs,
                )
            ],
        )

    for with_options in (False, True):
        report = verify(f"{file}:scaled", spec=factors(with_options), targets=SIM, seed=3, hidden=2)
        assert report.passed == with_options, str(report)
