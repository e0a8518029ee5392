"""``pytest-pallas new``: what is guessed of kernels with many kinds of signatures."""

from __future__ import annotations

import functools
import re

import kernels_to_guess
import pytest

import pytest_pallas
from pytest_pallas.loading import LoadedFunction, load
from pytest_pallas.scaffold import gaps, text_of
from pytest_pallas.scaffold_guess import Guess, guess

FLOATS = 'dtype=pst.dtypes("float32", "bfloat16")'

#: The inputs that the module must have, in one line, by function.
INPUTS = {
    "double": f'pst.arrays("m n", {FLOATS})',
    "matmul": f'pst.arrays("m k, k n", {FLOATS})',
    "attention": (
        f'pst.arguments( pst.arrays("b h s d, b g t d, b g t d; h % g = 0", {FLOATS}), '
        'tuning={"block_q": st.sampled_from([32, 64])}, )'
    ),
    "scaled": (
        f'pst.arguments( pst.arrays( "m n", {FLOATS}, multiple_of={{"m": 128, "n": 128}}, ), '
        'options={"scale": 0.5}, tuning={"block_m": 128, "block_n": 128}, )'
    ),
    "cast": (
        f'pst.arguments( pst.arrays("m n", {FLOATS}), '
        'options={"out_dtype": st.sampled_from(["float32", "bfloat16", "int32"])}, )'
    ),
    "rms_norm": (
        f'pst.arguments( pst.arrays("m n, n", {FLOATS}), '
        'tuning={"block_rows": st.sampled_from([16, 32])}, )'
    ),
    "reduce_rows": (
        f'pst.arguments( pst.arrays("rows cols", {FLOATS}), '
        'options={"mode": st.sampled_from(["sum", "mean"])}, )'
    ),
    "bias_add": 'pst.arrays("batch rows cols, cols", dtype="float32")',
    "dequantize": 'pst.arrays("m n, m", dtype=("int8", "float32"))',
    "linear": f'pst.arrays("m k, k n, n", {FLOATS})',
    "gated": f'pst.arrays("m n, m n, m n", {FLOATS})',
    "masked_rows": (
        f'pst.arguments( pst.arrays("b s d", {FLOATS}), then=lambda drawn: {{ '
        "# FILL IN: lengths of up to s "
        '"lengths": pst.lengths(drawn.recipe["b"], max_length=drawn.recipe["s"]), }, )'
    ),
    "gather": (
        f'pst.arguments( pst.arrays("m n", {FLOATS}), then=lambda drawn: {{ '
        "# FILL IN: indices from 0 to m - 1 "
        '"ids": pst.indices(4, size=drawn.recipe["m"]), }, )'
    ),
    "square": f'pst.arrays("m n", {FLOATS})',
    "misdescribed": f'pst.arrays("m n", {FLOATS})',
    "ones": "st.just(())",
    "eights": f'pst.arrays("m n", {FLOATS}, multiple_of={{"m": 8}})',
    "forgetful": f'pst.arrays("m n; m >= 8", {FLOATS})',
    "look_up": (
        f'pst.arguments( pst.arrays("vocab dim", {FLOATS}), then=lambda drawn: {{ '
        "# FILL IN: indices from 0 to vocab - 1 "
        '"tokens": pst.indices(4 * 4, size=drawn.recipe["vocab"]).map('
        " lambda flat: flat.reshape((4, 4)), ), }, )"
    ),
    "pages_in_order": (
        f'pst.arguments( pst.arrays("pages size dim", {FLOATS}), then=lambda drawn: {{ '
        "# FILL IN: numbers of pages below pages "
        '"page_table": pst.page_tables(4, pages_each=4, pages=drawn.recipe["pages"]), }, )'
    ),
    "write_at": (
        f'pst.arguments( pst.arrays("batch seq dim, batch dim", {FLOATS}), then=lambda drawn: {{ '
        "# FILL IN: indices from 0 to seq - 1 "
        '"position": pst.indices(1, size=drawn.recipe["seq"]).map(lambda flat: flat.reshape(())), '
        "}, )"
    ),
    "scores": (
        'pst.arrays( "m n, m n, m n", '
        'dtype=pst.dtype_pairs(("float32", "float32", "bool"), ("bfloat16", "bfloat16", "bool")), )'
    ),
    "triton_norm": (
        'pst.arrays( "m n", dtype="float32", '
        'dims={"n": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]}, )'
    ),
    "hopper_product": (
        'pst.arguments( pst.arrays("m k, k n", dtype="float16", '
        'multiple_of={"m": 64, "k": 64, "n": 128}), tuning={"bn": st.sampled_from([64, 128])}, )'
    ),
    # Without a reference only the blocks show which axes have one size.
    "matmul_alone": f'pst.arrays("m k, k n", {FLOATS})',
    "add_blocks": f'pst.arrays("m n, m n", {FLOATS})',
    "swish": f'pst.arrays("m n", {FLOATS})',
}

#: Those without a reference, of which no spec can pass.
ALONE = ("matmul_alone", "add_blocks", "swish")

#: Those that are wrong for sizes that a spec must draw.
WRONG = ("forgetful",)


@functools.cache
def guessed(name: str) -> Guess:
    if name == "reduce_rows":
        pytest.importorskip("jaxtyping", reason="jaxtyping is not installed")
    return guess(load(f"kernels_to_guess:{name}"))


def spec_of(name: str):
    space = {"__name__": f"spec_of_{name}"}
    exec(compile(text_of(guessed(name)), f"{name}.py", "exec"), space)
    return space["SPEC"]


@pytest.mark.parametrize("name", INPUTS)
def test_the_inputs(name):
    text = " ".join(text_of(guessed(name)).split())
    end = r", (?:# More to say|# jax.vmap|differentiable=)"
    [inputs] = re.findall(rf"[ (]inputs=(.*?){end}", text)
    assert inputs == INPUTS[name]


@pytest.mark.parametrize("name", [name for name in INPUTS if name not in (*ALONE, *WRONG)])
def test_the_spec_passes(name):
    assert pytest_pallas.check(spec_of(name), checks="forward", max_examples=6) is None


@pytest.mark.parametrize("name", WRONG)
def test_the_spec_fails(name):
    with pytest.raises(pytest_pallas.MismatchError):
        pytest_pallas.check(spec_of(name), checks="forward", max_examples=6)


@pytest.mark.parametrize("name", ALONE)
def test_without_a_reference_the_spec_says_what_is_missing(name):
    with pytest.raises(
        pytest_pallas.KernelReferenceError, match=f"FILL IN the reference of {name}"
    ):
        pytest_pallas.check(spec_of(name), checks="forward", max_examples=1)
    assert next(gaps(guessed(name))).startswith("the reference: the same function in jnp")


def test_a_function_of_jax_with_that_name_is_named():
    assert guessed("swish").alike == "jax.nn.swish"
    assert "is it jax.nn.swish?" in next(gaps(guessed("swish")))
    assert guessed("matmul_alone").alike == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("attention", "# causal=True is left out: for s=128, ValueError: causal needs as many"),
        ("scaled", "# m=1 was refused: ValueError: x of (1, 128) is no multiple of the blocks"),
        ("misdescribed", "no call can be traced so: the docstring says x: (a, b, c)."),
        ("plain", "# FILL IN: for float32[128, 128] there is no Pallas kernel in it."),
        ("ones", "vmappable=False"),
        ("square", "differentiable=(0,)"),
        ("gated", "return gated(x, Gates(up=gates_up, down=gates_down), **options)"),
        ("linear", 'return linear(x, {"w": params_w, "b": params_b}, **options)'),
        ("rms_norm", "return rms_norm(x, weight=weight, **options)"),
        ("masked_rows", "def call(x, lengths, **options):"),
    ],
)
def test_comments_and_more(name, words):
    assert words in text_of(guessed(name))


def test_a_mesh_is_no_array():
    """The reference gets it, too, whether it takes it or not."""
    text = text_of(guessed("on_devices"))
    assert 'inputs=lambda mesh: pst.arrays(\n        "m n",' in text
    assert 'multiple_of={"m": 8 * mesh.shape["x"]}' in text
    assert '    meshes="x",' in text
    assert "kernel=on_devices,\n    reference=reference,\n" in text
    assert "def reference(x, *, mesh, **options):" in text
    spec = spec_of("on_devices")
    assert pytest_pallas.check(spec, checks="forward", max_examples=2, mesh={"x": 4}) is None


def test_an_array_after_a_mesh():
    text = text_of(guessed("rotated"))
    assert '    meshes="ring",' in text
    assert "def call(x, **options):" in text
    assert "return rotated(x=x, **options)" in text
    spec = spec_of("rotated")
    assert pytest_pallas.check(spec, checks="forward", max_examples=2, mesh={"ring": 4}) is None


def test_what_no_guess_fits_is_written_with_what_was_tried():
    text = text_of(guessed("picky"))
    assert "# FILL IN the shapes, dtypes and keyword arguments. 600 calls were tried" in text
    assert "times ValueError: x must have the shape (3, 5, 7, 11)" in text
    assert 'pst.arrays("m n, k p", dtype="float32")' in text
    assert "the inputs: no call that was tried can be traced" in gaps(guessed("picky"))
    with pytest.raises(pytest_pallas.PallasError):
        pytest_pallas.check(spec_of("picky"), checks="forward", max_examples=1)


def test_a_grid_that_does_not_fit_is_left_for_the_tests_to_find():
    found = guessed("drops_tail")
    assert f'pst.arrays("m n", {FLOATS})' in text_of(found)
    with pytest.raises(pytest_pallas.MismatchError):
        pytest_pallas.check(spec_of("drops_tail"), checks="forward", max_examples=16)


def test_a_kernel_for_a_gpu_is_one_for_a_gpu():
    from reference_kernels.mosaic_gpu.row_softmax import row_softmax
    from reference_kernels.mosaic_gpu.row_softmax_spec import SPEC

    module = "reference_kernels.mosaic_gpu.row_softmax"
    made = guess(LoadedFunction(row_softmax, "row_softmax", module, "reference", SPEC.reference))
    assert 'kernel={"gpu": row_softmax}' in text_of(made)


def test_modules_are_formatted_and_fit(tmp_path):
    import subprocess
    import sys

    pytest.importorskip("ruff", reason="ruff is not installed")
    for name in [*INPUTS, "picky", "plain"]:
        (tmp_path / f"{name}.py").write_text(text_of(guessed(name)))
    lint = [sys.executable, "-m", "ruff"]
    for words in (("format", "--check"), ("check", "--select=E,F,W,B,D1")):
        options = ("--line-length=100", "--isolated", str(tmp_path))
        done = subprocess.run([*lint, *words, *options], capture_output=True)
        assert done.returncode == 0, done.stdout.decode()[-3000:]


@pytest.mark.parametrize("name", [name for name in vars(kernels_to_guess) if name.endswith("_ref")])
def test_every_reference_is_found(name):
    assert load(f"kernels_to_guess:{name.removesuffix('_ref')}").reference == name
