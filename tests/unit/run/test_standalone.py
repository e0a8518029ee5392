"""``pytest_pallas.check``: the answers and errors of ``pallas_check``, without a pytest session."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as pltriton
from pallas_test_support.forked_python import run_python
from pallas_test_support.sample_kernels import add_one

import pytest_pallas
from pytest_pallas import (
    Arguments,
    BackendUnavailableError,
    CapacityError,
    DeviceError,
    ExpectedFailure,
    GridError,
    KernelSpec,
    Linear,
    MismatchError,
    NotApplicableError,
    OptionError,
    RaceError,
    Relation,
    Tolerance,
    strategies,
)

X = np.ones((8, 128), np.float32)
INPUTS = strategies.arrays("8 n", dtype="float32", dims={"n": [128, 256]})


def plus_one(x: Any) -> Any:
    return x + 1


def plus_two(x: Any) -> Any:
    return add_one(x) + 1


def on_mesh(x: Any, *, mesh: Any) -> Any:
    spec = jax.sharding.PartitionSpec(mesh.axis_names[0])
    return jax.shard_map(add_one, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(x)


def on_one_device(x: Any, *, mesh: Any) -> Any:
    del mesh
    return x + 1


def early(x: Any) -> Any:
    """A copy that is read before it has arrived."""

    def body(x_ref: Any, o_ref: Any, buffer: Any, arrived: Any) -> None:
        copied = pltpu.make_async_copy(x_ref, buffer, arrived)
        copied.start()
        o_ref[...] = buffer[...]
        copied.wait()

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=[pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA],
    )(x)


def spec(**fields: Any) -> KernelSpec:
    usual = {"name": "one", "kernel": add_one, "reference": plus_one, "inputs": INPUTS}
    return KernelSpec(**{**usual, "vmappable": False, **fields})


def test_the_answer_is_returned():
    values = pytest_pallas.check(add_one, X, reference=plus_one)
    assert type(values) is np.ndarray
    assert (values == 2).all()


def test_a_wrong_kernel():
    words = r"plus_two: forward on tpu-sim is wrong\noutput, float32\[8, 128\]: wrong in 1024 of"
    with pytest.raises(MismatchError, match=words) as caught:
        pytest_pallas.check(plus_two, X, reference=plus_one)
    frames = [entry for entry in caught.traceback if "pytest_pallas" in str(entry.path)]
    assert len(frames) == 1  # of check itself: nothing of the package hides the message


def test_a_race():
    for checks in ("races", "forward"):  # the runs of every check are watched
        with pytest.raises(RaceError, match=f"early: {checks} on tpu-sim: .*nothing orders"):
            pytest_pallas.check(early, X, reference=lambda x: x, checks=checks)
    with pytest.raises(NotApplicableError, match="add_one: races on tpu-sim: no example starts"):
        pytest_pallas.check(add_one, X, reference=plus_one, checks="races")


def too_large(x: Any, *, space: Any = pltpu.VMEM, shape: Any = (8000, 8000)) -> Any:
    """246 MiB of VMEM, where a v6e has 128."""

    def body(x_ref: Any, o_ref: Any, scratch: Any) -> None:
        scratch[0] = jnp.ones(shape[1:], x_ref.dtype)
        o_ref[...] = x_ref[...] + 1

    return pl.pallas_call(body, out_shape=x, scratch_shapes=[space(shape, x.dtype)])(x)


@pytest.mark.parametrize("check", ["forward", "grid"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({}, r"take 246\.1 MiB of VMEM, and v6e gives a kernel 32\.0 MiB: scratch 246"),
        ({"space": pltpu.SMEM, "shape": (2**19,)}, r"take 2\.0 MiB of SMEM, and a core of v6e has"),
    ],
)
def test_memory_that_a_tpu_does_not_have(check, words, message):
    kernel = functools.partial(too_large, **words)
    error = CapacityError if check == "forward" else GridError
    with pytest.raises(error, match=message):
        pytest_pallas.check(
            kernel, X, reference=plus_one, backend="tpu-sim:v6e", checks=check, sanitize="none"
        )


def test_fences_after_reads():
    """``read_fences`` decides whether a copy that the kernel starts needs one."""

    def refilled(x: Any) -> Any:
        def body(x_ref: Any, o_ref: Any, buffer: Any, arrived: Any) -> None:
            for row in range(2):
                plgpu.copy_gmem_to_smem(x_ref.at[row], buffer, arrived)
                plgpu.barrier_wait(arrived)
                o_ref[row] = buffer[...] + 1

        types = [plgpu.SMEM(x.shape[1:], x.dtype), plgpu.Barrier()]
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return plgpu.kernel(body, out_type=shape, scratch_types=types)(x)

    x = np.ones((2, 128), np.float32)
    with pytest.raises(RaceError, match="no fence comes between"):
        pytest_pallas.check(refilled, x, reference=plus_one)
    assert (pytest_pallas.check(refilled, x, reference=plus_one, read_fences="none") == 2).all()
    with pytest.raises(OptionError, match=r"read_fences=...\): must be one of kernel"):
        pytest_pallas.check(refilled, x, reference=plus_one, read_fences="some")


def test_a_kernel_with_parameters_of_triton_runs_on_a_gpu():
    def kernel(x: Any) -> Any:
        def body(x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = x_ref[...] + 2

        parameters = pltriton.CompilerParams(num_warps=4)
        return pl.pallas_call(body, out_shape=x, compiler_params=parameters)(x)

    with pytest.raises(MismatchError, match="kernel: forward on gpu-sim is wrong"):
        pytest_pallas.check(kernel, X, reference=plus_one)


def test_over_a_mesh():
    words: Any = {"reference": on_one_device, "mesh": {"x": 4}}
    assert (pytest_pallas.check(on_mesh, X, **words) == 2).all()
    with pytest.raises(MismatchError, match="wrong: forward on tpu-sim is wrong"):
        pytest_pallas.check(lambda x, mesh: on_mesh(x, mesh=mesh) + 1, X, **words, name="wrong")
    with pytest.raises(DeviceError, match=r"needs 4096 devices, .* JAX_NUM_CPU_DEVICES=4096"):
        pytest_pallas.check(on_mesh, X, reference=on_one_device, mesh={"x": 4096})


def test_a_backend_is_named():
    assert (pytest_pallas.check(add_one, X, reference=plus_one, backend="interpret") == 2).all()
    with pytest.raises(MismatchError, match="plus_two: forward on tpu-interpret:v5e is wrong"):
        pytest_pallas.check(plus_two, X, reference=plus_one, backend="tpu-interpret:v5e")


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ({"backend": "tpu"}, BackendUnavailableError, "backend 'tpu' is not available"),
        ({"backend": "tpusim"}, OptionError, "unknown backend 'tpusim'. Did you mean 'tpu-sim'?"),
        ({"backend": "tpu-sim:all"}, OptionError, "several backends .* give one"),
        ({"seed": -1}, OptionError, r"check\(seed=...\): must be an integer"),
        ({"timeout": 0}, OptionError, r"check\(timeout=...\): must be a number of seconds"),
        ({"sanitize": "rases"}, OptionError, "sanitize: unknown 'rases'"),
        ({"checks": "forwards"}, OptionError, "checks=: unknown 'forwards'; valid: all"),
        ({"devices": 77}, DeviceError, "77 CPU devices come too late"),
        ({"peers": ["tpu-compile"]}, BackendUnavailableError, "peers=: tpu-compile"),
        ({"reference": None}, TypeError, "add_one: reference= is missing"),
        (
            {"refrence": 1},
            TypeError,
            "'refrence'. Did you mean 'reference'. There are reference, ",
        ),
        ({"mesh": {"x": 2}}, OptionError, "add_one: the kernel takes no mesh="),
    ],
)
def test_what_does_not_fit_is_refused(words, error, message):
    with pytest.raises(error, match=message):
        pytest_pallas.check(add_one, X, **{"reference": plus_one, **words})


def test_a_parameter_of_the_kernel_is_no_keyword_argument():
    def kernel(x: Any, *, negate: bool, block: int) -> Any:
        del block
        return add_one(-x if negate else x)

    def reference(x: Any, *, negate: bool) -> Any:
        return (-x if negate else x) + 1

    check: Any = pytest_pallas.check
    options = "'negate'. It is a parameter of the kernel: give options={'negate': ...}. There are "
    with pytest.raises(TypeError, match=options):
        check(kernel, X, reference=reference, negate=True)
    tuning = "'block'. It is a parameter of the kernel: give tuning={'block': ...}. .* seed, "
    with pytest.raises(TypeError, match=tuning):
        check(kernel, X, reference=reference, block=8)
    values = check(kernel, X, reference=reference, options={"negate": True}, tuning={"block": 8})
    assert (values == 0).all()


def test_the_old_decorator_is_refused():
    check: Any = pytest_pallas.check
    with pytest.raises(OptionError, match=r"not 'flat'; .* by @pytest_pallas.declare_check"):
        check("flat", asks="is it element by element?")
    assert pytest_pallas.declare_check("flat", asks="?")(lambda _: None).name == "flat"


def test_a_check_of_ones_own():
    def refuse(context: Any) -> Any:
        raise MismatchError(f"not {context.arguments.args[0].shape}")

    own = pytest_pallas.declare_check("liking", asks="?")(refuse)
    with pytest.raises(MismatchError, match=r"add_one: liking on tpu-sim: not \(8, 128\)"):
        pytest_pallas.check(add_one, X, reference=plus_one, checks=["forward", own])


def test_what_must_hold_besides_is_told():
    def biased(x: Any) -> Any:
        return add_one(x) + 0.25

    check = pytest_pallas.check
    promises: Any = {"reference": lambda x: x + 1.25}
    with pytest.raises(MismatchError, match="biased: linearity on tpu-sim"):
        check(biased, X, **promises, checks="linearity", relations=[Linear(0)])
    doubled = Relation("twice", lambda call, _: Arguments((2 * call.args[0],)))
    with pytest.raises(MismatchError, match=r"biased: relation on tpu-sim .twice"):
        check(biased, X, **promises, checks="relation", relations=[doubled])
    with pytest.raises(MismatchError, match="one of two differs from the oracle: twin by"):
        check(biased, X, **promises, checks="cross", implementations={"twin": plus_one})
    with pytest.raises(MismatchError, match="one of two differs from the oracle: interpret by"):
        check(biased, X, **promises, checks="cross", peers={"interpret": plus_two})
    assert check(biased, X, **promises, checks="cross", peers="interpret") is None
    loose = Tolerance(atol=1.5)
    assert check(plus_two, X, reference=plus_one, tolerance=loose).shape == X.shape


@pytest.mark.parametrize(
    ("tolerance", "passes"),
    [
        (1.0, True),
        (1e-3, False),
        ({"rtol": 0.6}, True),
        ({"rtol": 1e-3}, False),
        ({"float32": 1.0}, True),
        ({jnp.float32: 1.0}, True),
        ({"bfloat16": 1.0}, False),
        ({"tpu-sim": {"atol": 1.0}}, True),
        ({"tpu-sim float32": Tolerance(atol=1e-3), "float32": 1.0}, False),
    ],
)
def test_what_stands_for_a_tolerance(tolerance, passes):
    if passes:
        pytest_pallas.check(plus_two, X, reference=plus_one, tolerance=tolerance)
        return
    with pytest.raises(MismatchError):
        pytest_pallas.check(plus_two, X, reference=plus_one, tolerance=tolerance)


@pytest.mark.parametrize(
    ("tolerance", "message"),
    [
        ("1e-3", "tolerance: '1e-3' is none; write 1e-3"),
        (True, "tolerance: True is none; write"),
        (0, "tolerance: 0 is none; exact=True asks for equal numbers"),
        (-1e-3, "is none; write"),
        (float("nan"), "is none; write"),
        ((1e-3, 1e-5), "is none; write"),
        ({}, "mixes fields"),
        ({"rtol": 1e-3, "float32": 1e-3}, "mixes fields with other keys; write"),
        ({"rtoll": 1e-3}, "tolerance: unknown backend 'rtoll'"),
        ({"float23": 1e-3}, "tolerance: unknown backend 'float23'"),
        ({"tpu-sim flaot32": 1e-3}, "tolerance: unknown dtype 'flaot32'"),
        ({"float32": "tight"}, "tolerance: 'tight' is none"),
        ({"float32": {"float32": 1}}, "of 'float32' is none"),
        ({3: 1e-3}, "tolerance: 3 is no dtype and no backend"),
        ({"rtol": "x"}, "tolerance: rtol must be a number"),
    ],
)
def test_what_stands_for_no_tolerance(tolerance, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        pytest_pallas.check(plus_one, X, reference=plus_one, tolerance=tolerance)


def test_a_whole_call_may_be_given():
    call = Arguments((X,), recipe={"m": 8})
    with pytest.raises(MismatchError, match=r"drawn +m=8"):
        pytest_pallas.check(plus_two, call, reference=plus_one)
    with pytest.raises(OptionError, match="options= and tuning= are those of the call"):
        pytest_pallas.check(plus_two, call, reference=plus_one, options={"a": 1})


class TestSpec:
    def test_examples_are_drawn(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        assert pytest_pallas.check(spec(), max_examples=2) is None
        with pytest.raises(MismatchError, match="one: forward on tpu-sim is wrong"):
            pytest_pallas.check(spec(kernel=plus_two), max_examples=2)
        assert not list(tmp_path.iterdir())  # nothing is kept

    def test_a_call_is_given(self):
        assert (pytest_pallas.check(spec(), X, checks="forward") == 2).all()
        with pytest.raises(OptionError, match=r"leave out exact=, or check dataclasses.replace"):
            pytest_pallas.check(spec(), X, exact=True)

    def test_on_meshes(self):
        words: Any = {"kernel": on_mesh, "reference": on_one_device, "inputs": lambda _: INPUTS}
        over = spec(**words, meshes=({"x": 2}, {"x": 4}), checks=("forward",))
        assert pytest_pallas.check(over, max_examples=1) is None
        assert (pytest_pallas.check(over, X, mesh={"x": 4}) == 2).all()

    def test_the_backend_is_one_that_it_claims(self):
        for_gpu = spec(kernel={"gpu": plus_two}, checks=("forward",))
        with pytest.raises(MismatchError, match=r"one: forward on gpu-sim is wrong"):
            pytest_pallas.check(for_gpu, X)
        with pytest.raises(OptionError, match=r"one claims gpu-sim, .* only; give backend="):
            pytest_pallas.check(for_gpu, X, backend="tpu-sim")

    def test_peers(self):
        kernels = {"gpu": add_one, "tpu": plus_two}
        with pytest.raises(MismatchError, match=r"one: cross on tpu-interpret .*differs"):
            pytest_pallas.check(
                spec(kernel=kernels), X, checks="cross", backend="tpu-interpret", peers="interpret"
            )

    def test_an_expected_failure_is_told(self):
        known = {"tpu-sim": ExpectedFailure(reason="known", jax="0.12")}
        failing = spec(kernel=plus_two, xfail=known, checks=("forward",))
        with pytest.warns(UserWarning, match="one: forward on tpu-sim failed as expected: known"):
            pytest_pallas.check(failing, X)

    def test_under_given(self):
        seen: list[Any] = []

        @settings(max_examples=2, database=None)
        @given(call=INPUTS, nothing=st.none())
        def inner(call: Any, nothing: None) -> None:
            del nothing
            seen.append(pytest_pallas.check(spec(), call, checks="forward"))
            with pytest.raises(OptionError, match="under @given; leave out @given"):
                pytest_pallas.check(spec())

        inner()
        assert seen


def test_it_compiles_for_a_chip_that_is_not_there():
    pytest.importorskip("libtpu")
    report = pytest_pallas.check(add_one, X, backend="tpu-compile:v5e")
    assert (report.status, report.target) == ("compiled", "v5e")


def run(text: str, folder: Path, *, fresh: bool) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, which has imported nothing if ``fresh``."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text))
    support = Path(__file__).parents[2] / "support"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "PYTEST"))}
    env = {**kept, "PYTHONPATH": str(support)}
    if not fresh:
        return run_python(path, cwd=folder, env=env)
    return subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_in_a_plain_script(tmp_path):
    ended = run(
        """
        import numpy as np
        import pytest_pallas
        from pallas_test_support.sample_kernels import add_one

        X = np.ones((8, 128), np.float32)
        print(pytest_pallas.check(add_one, X, reference=lambda x: x + 1).sum())
        pytest_pallas.check(add_one, X, reference=lambda x: x, checks="forward")
        """,
        tmp_path,
        fresh=True,
    )
    assert ended.returncode == 1
    assert ended.stdout == "2048.0\n"
    *trace, first = ended.stderr.partition("\noutput, float32")[0].splitlines()
    assert first == "pytest_pallas.MismatchError: add_one: forward on tpu-sim is wrong"
    assert len([line for line in trace if line.startswith("  File")]) == 2


def test_in_unittest_and_absltest(tmp_path):
    ended = run(
        """
        import unittest
        import warnings

        import numpy as np
        import pytest_pallas
        from absl.testing import absltest, parameterized
        from pallas_test_support.sample_kernels import add_one

        warnings.simplefilter("error")
        X = np.ones((8, 128), np.float32)


        class Plain(unittest.TestCase):
            def test_right(self):
                values = pytest_pallas.check(add_one, X, reference=lambda x: x + 1)
                self.assertEqual(values.sum(), 2048)

            def test_wrong(self):
                pytest_pallas.check(add_one, X, reference=lambda x: x)


        class Abseil(parameterized.TestCase):
            @parameterized.parameters("tpu-sim", "interpret")
            def test_backends(self, backend):
                pytest_pallas.check(add_one, X, reference=lambda x: x + 1, backend=backend)

            def test_wrong(self):
                pytest_pallas.check(add_one, X, reference=lambda x: x, checks="forward")


        if __name__ == "__main__":
            absltest.main()
        """,
        tmp_path,
        fresh=False,
    )
    assert ended.returncode == 1
    assert "Ran 5 tests" in ended.stderr
    assert "FAILED (failures=2)" in ended.stderr  # no errors: a mismatch is an AssertionError
    assert "FAIL: test_wrong (__main__.Plain" in ended.stderr
    assert "FAIL: test_wrong (__main__.Abseil" in ended.stderr
    assert "add_one: forward on tpu-sim is wrong" in ended.stderr
