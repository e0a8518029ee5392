"""``verify --suite=jaxbench``: a small suite of our own, of the form of JAXBench."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_pallas.__main__ import main
from pytest_pallas.candidates import jaxbench, shrinking
from pytest_pallas.candidates.jaxbench import SuiteVerdict, find_tasks, own_rule, verify_suite
from pytest_pallas.candidates.suite_modules import config_of, varied

HEAD = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
"""

#: A task whose weight is zero, so that a wrong answer is right at the suite's inputs.
BASELINE = (
    HEAD
    + """
CONFIG = {"name": "scale", "batch": 2, "rows": 16, "columns": 128, "shift": 1.5}

def create_inputs(dtype=jnp.bfloat16):
    k1, k2 = jax.random.split(jax.random.key(42))
    shape = (CONFIG["batch"], CONFIG["rows"], CONFIG["columns"])
    x = jax.random.normal(k1, shape, dtype=dtype)
    return x, jnp.zeros((CONFIG["columns"],), dtype=dtype)

def workload(x, weight):
    return x * 2 + weight + CONFIG["shift"]
"""
)

#: Blocks of 8 rows.
KERNEL = (
    HEAD
    + """
def body(x_ref, w_ref, o_ref):
    o_ref[...] = (x_ref[...] * 2 + w_ref[...] + SHIFT).astype(o_ref.dtype)

SHIFT = 1.5

def call(x, weight, rows):
    block = pl.BlockSpec((1, 8, x.shape[2]), lambda i, j: (i, j, 0))
    return pl.pallas_call(
        body,
        grid=(x.shape[0], rows // 8),
        in_specs=[block, pl.BlockSpec((x.shape[2],), lambda i, j: (0,))],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x, weight)

def workload(x, weight):
    return call(x, weight, x.shape[1])
"""
)

CANDIDATES: Mapping[str, str] = {
    "right.py": KERNEL,
    "wrong.py": KERNEL.replace("* 2", "* 3"),
    "zero_weight.py": KERNEL.replace(" + w_ref[...]", ""),
    "copies.py": HEAD + "def workload(x, weight):\n"
    "    y = x * 2 + weight + 1.5\n"
    "    def body(y_ref, o_ref): o_ref[...] = y_ref[...]\n"
    "    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(y.shape, y.dtype))(y)\n",
    "forgets_rows.py": KERNEL.replace("call(x, weight, x.shape[1])", "call(x, weight, 8)"),
    "other_shape.py": KERNEL.replace("weight, x.shape[1])", "weight, 16)[:1]"),
    "other_dtype.py": KERNEL.replace("(x.shape, x.dtype)", "(x.shape, jnp.float32)"),
    "no_kernel.py": HEAD + "def workload(x, weight): return x * 2 + weight + 1.5\n",
    "no_workload.py": HEAD,
    "syntax.py": "def workload(x, weight) return",
    "raises.py": HEAD + "def workload(x, weight): raise ValueError('never done')\n",
    "arity.py": KERNEL.replace(
        "def workload(x, weight):", "def workload(x):\n    weight = x[0, 0]"
    ),
    "callback.py": HEAD + "def workload(x, weight):\n"
    "    return jax.pure_callback(lambda y: y, jax.ShapeDtypeStruct(x.shape, x.dtype), x)\n",
}

#: Of each candidate: by its own rule, by ours, and a part of the reason.
EXPECTED: Mapping[str, tuple[str, str, str]] = {
    "right.py": ("correct", "passed", ""),
    "wrong.py": ("incorrect", "failed", "wrong answer"),
    "zero_weight.py": ("correct", "failed", "hidden: wrong answer"),
    "copies.py": ("correct", "failed", "only copies"),
    "forgets_rows.py": ("incorrect", "failed", "no program writes"),
    "other_shape.py": ("incorrect", "failed", "shape mismatch: (2, 16, 128) vs (1, 16, 128)"),
    "other_dtype.py": ("correct", "failed", "wrong dtype: float32 in place of bfloat16"),
    "no_kernel.py": ("correct", "failed", "no Pallas kernel"),
    "no_workload.py": ("compile_error", "failed", "has no attribute 'workload'"),
    "syntax.py": ("error", "failed", "SyntaxError"),
    "raises.py": ("runtime_error", "failed", "ValueError: never done (raises.py:4)"),
    "arity.py": ("runtime_error", "failed", "takes 1 positional argument but 2 were given"),
    "callback.py": ("", "failed", "pure_callback cannot cross"),
}


def suite(folder: Path, tasks: Mapping[str, Mapping[str, str]]) -> Path:
    for name, files in tasks.items():
        task = folder / "benchmark" / name
        task.mkdir(parents=True)
        for file, text in files.items():
            (task / file).write_text(text)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tasks = {
        "10k_Alone": {"baseline.py": BASELINE},
        "2p_Scale": {"baseline.py": BASELINE, "__init__.py": "", **CANDIDATES},
        "1p_First": {"baseline.py": BASELINE, "optimized.py": KERNEL},
    }
    return suite(tmp_path_factory.mktemp("suite"), tasks)


@pytest.fixture(scope="module")
def verdicts(folder: Path) -> Mapping[str, SuiteVerdict]:
    before = sorted(path for path in folder.rglob("*"))
    tasks = find_tasks(folder, "2p_Scale")
    judged = {
        v.candidate.name: v for v in verify_suite(tasks, seed=1, compiles=False) if v.candidate
    }
    assert sorted(path for path in folder.rglob("*")) == before
    assert not {"baseline", "right", "wrong"} & set(sys.modules)
    return judged


@pytest.mark.parametrize("name", CANDIDATES)
def test_a_candidate_has_both_verdicts(name: str, verdicts: Mapping[str, SuiteVerdict]) -> None:
    verdict = verdicts[name]
    own, ours, reason = EXPECTED[name]
    assert (verdict.own.status, verdict.verdict) == (own, ours), verdict
    assert reason in verdict.why
    assert verdict.status == (0 if ours == "passed" else 1)


def test_tasks_are_those_of_the_suite_in_its_order(folder: Path) -> None:
    names = ["1p_First", "2p_Scale", "10k_Alone"]
    assert [task.name for task in find_tasks(folder)] == names
    assert [task.name for task in find_tasks(folder / "benchmark")] == names
    (one,) = find_tasks(folder / "benchmark" / "1p_First")
    assert [path.name for path in one.candidates] == ["optimized.py"]
    (alone,) = verify_suite([find_tasks(folder)[-1]])
    assert (alone.verdict, alone.status, alone.candidate) == ("not run", 0, None)
    assert "no candidate" in jaxbench.table_row(alone)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("missing",), "there is no such folder"),
        (("empty",), "is no folder of JAXBench"),
        (("benchmark/10k_Alone",), "has no candidate"),
        (("", "--workload=3p"), "there is no such task; there are 10k_Alone, 1p_First, 2p_Scale"),
        (("", "--kernel=x.py"), "name it with --workload"),
        (("", "--workload=1p_First", "--kernel=x.py"), "there is no such file"),
        (("", "--reference=a.py:f"), "--reference is not used with --suite"),
        (("", "benchmark"), "give one folder"),
    ],
)
def test_what_is_no_suite_is_refused(
    folder: Path, arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "empty").mkdir(exist_ok=True)
    paths = [arg if arg.startswith("--") else str(folder / arg) for arg in arguments]
    with contextlib.suppress(SystemExit):
        assert main(["verify", "--suite=jaxbench", *paths]) == 2
    assert sentence in capsys.readouterr().err


def test_flags_of_a_suite_need_one(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        assert main(["verify", "a.py:f", "--workload=1p"]) == 2
    assert "--workload is of a suite" in capsys.readouterr().err
    with contextlib.suppress(SystemExit):
        assert main(["verify", "a.py:f"]) == 2
    assert "give --reference and --inputs" in capsys.readouterr().err


def test_the_command_writes_the_json_of_the_suite(folder: Path, tmp_path: Path) -> None:
    kernel = tmp_path / "my-kernel.py"
    kernel.write_text(KERNEL)
    shown, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(errors):
        status = main(
            ["verify", "--suite=jaxbench", str(folder), "--workload", "1p_First"]
            + ["--kernel", str(kernel), "--tpu", "v6e", "--seed=1", "--hidden=1", "--json"]
        )
    assert status == 0
    facts = json.loads(shown.getvalue())
    assert facts["workload"] == "1p_First"
    assert facts["status"] == "correct"
    assert facts["correctness"] == {"correct": True, "max_diff": 0.0, "reason": "ok"}
    assert facts["config"]["rows"] == 16
    assert facts["verify"]["verdict"] == "passed"
    assert facts["verify"]["judged_shapes"] == [[2, 16, 128], [128]]
    assert facts["verify"]["report"]["digest"]
    assert "1p_First" in errors.getvalue()


UNSUPPORTED = {
    "dict": "return {'x': jnp.ones(4)}, 1",
    "text": "return jnp.ones(4), 'sum'",
    "key": "return jnp.ones(4), jax.random.key(0)",
    "raises": "raise RuntimeError('no data')",
    "huge": "return jnp.ones((1 << 20, 1 << 14))",
}


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_inputs_that_cannot_be_used_are_a_verdict(kind: str, tmp_path: Path) -> None:
    baseline = (
        HEAD + f"def create_inputs():\n    {UNSUPPORTED[kind]}\n\n\ndef workload(*x): return x\n"
    )
    files = {"baseline.py": baseline, "optimized.py": KERNEL}
    (verdict,) = verify_suite(find_tasks(suite(tmp_path, {"1p_Odd": files})), compiles=False)
    assert (verdict.verdict, verdict.status) == ("undecided", 3)
    assert verdict.why.startswith("baseline.py: ")
    reasons = {"dict": "container", "text": "str", "key": "key<fry>", "raises": "no data"}
    assert reasons.get(kind, "the limit is 4 GiB") in verdict.why
    json.dumps(jaxbench.suite_json([verdict], "v6e"), allow_nan=False)


PRODUCT = (
    HEAD
    + """
CONFIG = {"M": 4096, "K": 2048, "N": 4096}

def create_inputs(dtype=jnp.bfloat16):
    k1, k2 = jax.random.split(jax.random.key(0))
    x = jax.random.normal(k1, (CONFIG["M"], CONFIG["K"]), dtype=dtype)
    return x, jax.random.normal(k2, (CONFIG["K"], CONFIG["N"]), dtype=dtype) * 0.02

def workload(x, y):
    return jnp.dot(x, y)
"""
)

BLOCKS = (
    HEAD
    + """
def body(x_ref, y_ref, o_ref):
    product = jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)
    o_ref[...] = product.astype(o_ref.dtype)

def workload(x, y):
    (m, k), n = x.shape, y.shape[1]
    return pl.pallas_call(
        body,
        grid=(m // 64, n // 128),
        in_specs=[
            pl.BlockSpec((64, k), lambda i, j: (i, 0)),
            pl.BlockSpec((k, 128), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((64, 128), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
    )(x, y)
"""
)


def test_large_sizes_are_cut_to_a_part_of_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and columns are cut to two blocks or more; what a product contracts is kept."""
    monkeypatch.setattr(shrinking, "USUAL_SECONDS", 0.05)
    files = {"baseline.py": PRODUCT, "right.py": BLOCKS}
    (verdict,) = verify_suite(find_tasks(suite(tmp_path, {"1p_Dot": files})), compiles=False)
    assert verdict.verdict == "passed", verdict
    assert verdict.part
    (rows, depth), (_, columns) = (shape for shape, _ in verdict.judged)
    assert depth == 2048
    assert 128 <= rows < 1024
    assert rows % 64 == 0
    assert 256 <= columns < 1024
    assert [shape for shape, _ in verdict.given] == [(4096, 2048), (2048, 4096)]


@pytest.mark.slow
def test_a_candidate_that_is_too_large_is_no_silent_pass(tmp_path: Path) -> None:
    shape, sizes = "(m, k), n = x.shape, y.shape[1]", "m, k, n = 16384, 8192, 16384"
    product = PRODUCT.replace("4096", "16384").replace("2048", "8192")
    files = {"baseline.py": product, "tied.py": BLOCKS.replace(shape, sizes)}
    (verdict,) = verify_suite(find_tasks(suite(tmp_path, {"1p_Dot": files})), compiles=False)
    assert (verdict.verdict, verdict.status) == ("undecided", 3)
    assert "too large for this machine" in verdict.why
    assert "M=16384" in verdict.why


@pytest.mark.slow
def test_heads_are_cut_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrinking, "USUAL_SECONDS", 0.004)
    baseline = (
        HEAD
        + """
CONFIG = {"heads": 64, "shared": 8, "rows": 16}

def create_inputs():
    a = jax.random.normal(jax.random.key(0), (CONFIG["heads"], CONFIG["rows"], 128))
    return a, jax.random.normal(jax.random.key(1), (CONFIG["shared"], CONFIG["rows"], 128))

def workload(a, b):
    return a + jnp.repeat(b, CONFIG["heads"] // CONFIG["shared"], axis=0)
"""
    )
    kernel = (
        HEAD
        + """
def body(a_ref, b_ref, o_ref):
    o_ref[...] = a_ref[...] + b_ref[...]

def workload(a, b):
    group = a.shape[0] // b.shape[0]
    block = pl.BlockSpec((1, *a.shape[1:]), lambda i: (i, 0, 0))
    other = pl.BlockSpec((1, *a.shape[1:]), lambda i: (i // group, 0, 0))
    return pl.pallas_call(
        body, grid=a.shape[:1], in_specs=[block, other], out_specs=block,
        out_shape=jax.ShapeDtypeStruct(a.shape, a.dtype),
    )(a, b)
"""
    )
    files = {"baseline.py": baseline, "right.py": kernel}
    (verdict,) = verify_suite(find_tasks(suite(tmp_path, {"1p_Group": files})), compiles=False)
    assert verdict.verdict == "passed", verdict
    assert verdict.part
    (heads, *_), (shared, *_) = (shape for shape, _ in verdict.judged)
    assert heads == 8 * shared < 64


def test_its_own_rule_is_that_of_the_suite() -> None:
    one = np.array([1.0, -2.0], "float32")
    assert own_rule([one], [one + 0.01])["correct"]
    wrong: dict[str, Any] = own_rule([one], [one + 0.1])
    assert (wrong["correct"], wrong["reason"]) == (False, "values differ")
    assert wrong["max_diff"] == pytest.approx(0.1, rel=1e-3)
    assert not own_rule([one], [one * np.nan])["correct"]


def test_config_is_read_without_running_it() -> None:
    text = "CONFIG = {'a': 1, 'b': 'x', 'c': f(), **more, 'd': [1], 'e': -2.5}"
    assert config_of(text) == {"a": 1, "b": "x", "e": -2.5}
    assert config_of("CONFIG = dict(a=1)") == config_of("def (") == {}


def test_constants_are_varied_and_nothing_else() -> None:
    drawn, count = np.arange(4, dtype="float32"), np.full(3, 7)
    inputs = (np.zeros(100, "float32"), np.ones(100, "float32"), drawn, count)
    zeros, ones, *others = varied(np.random.default_rng(0), inputs)
    assert 0 < np.abs(zeros).max() <= 0.25
    assert 0.75 <= ones.min() < ones.max() <= 1.25
    assert others == [drawn, count]


def test_a_task_without_a_trace_is_what_the_suite_calls_an_error(tmp_path: Path) -> None:
    """An integer of ``create_inputs`` is traced by the suite's ``jit``, and is no static size."""
    baseline = (
        HEAD
        + "def create_inputs(): return jnp.ones((8, 128)), 4\n"
        + "def workload(x, n): return jnp.zeros((n, 128)) + x[:4]\n"
    )
    files = {"baseline.py": baseline, "optimized.py": KERNEL}
    (verdict,) = verify_suite(find_tasks(suite(tmp_path, {"1p_Int": files})), compiles=False)
    assert (verdict.own.status, verdict.verdict) == ("error", "undecided")
    assert "TypeError" in verdict.why


def test_a_candidate_of_a_suite_may_import_what_is_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "benchmark" / "1p_scale"
    folder.mkdir(parents=True)
    (folder / "baseline.py").write_text(BASELINE)
    (folder / "parts.py").write_text(KERNEL)
    beside = tmp_path / "candidate.py"
    beside.write_text("from parts import call\ndef workload(x, w): return call(x, w, x.shape[1])")
    (tmp_path / "parts.py").write_text(KERNEL)
    (verdict,) = verify_suite(find_tasks(folder, kernel=beside), seed=1, compiles=False)
    assert verdict.verdict == "passed", verdict.why


#: Rounds to bfloat16 in between, among others where few keys nearly cancel.
ATTENTION = (
    HEAD
    + """
def create_inputs():
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(key, (256, 128), dtype=jnp.bfloat16) for key in keys)
    return q * 128**-0.5, k * 0.02, v * 0.02

def workload(q, k, v):
    scores = jnp.where(jnp.tril(jnp.ones((256, 256), bool)), jnp.einsum("qd,kd->qk", q, k), -1e30)
    return jnp.einsum("qk,kd->qd", jax.nn.softmax(scores, axis=-1), v)
"""
)


def test_the_reference_of_a_suite_is_exact(tmp_path: Path) -> None:
    """A kernel with the error of one rounding only is refused if its oracle rounds to bfloat16."""
    (tmp_path / "baseline.py").write_text(ATTENTION)
    (tmp_path / "kernel.py").write_text(
        HEAD
        + """
def body(q_ref, k_ref, v_ref, o_ref):
    q, k, v = (ref[...].astype(jnp.float32) for ref in (q_ref, k_ref, v_ref))
    scores = jnp.dot(q, k.T)
    rows, columns = (jax.lax.broadcasted_iota(jnp.int32, scores.shape, axis) for axis in (0, 1))
    weights = jnp.exp(jnp.where(rows >= columns, scores, -1e30))
    o_ref[...] = (jnp.dot(weights, v) / weights.sum(1, keepdims=True)).astype(o_ref.dtype)

def workload(q, k, v):
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype))(q, k, v)
"""
    )
    (verdict,) = verify_suite(find_tasks(tmp_path), seed=1, compiles=False)
    assert verdict.verdict == "passed", verdict.why
