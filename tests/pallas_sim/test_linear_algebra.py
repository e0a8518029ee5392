"""Decompositions, systems of equations and Fourier transforms are those of JAX."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.lax import linalg
from pallas_test_support.rules_of_jax import both

from pallas_sim import simulate

#: Batches of square, high and wide matrices, odd sizes among them.
SQUARE = [(1, 1), (5, 5), (2, 3, 3)]
SHAPES = [(1, 1), (2, 3, 3), (7, 4), (3, 8)]
DTYPES = ["float32", "complex64"]


def matrices(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    random = np.random.default_rng([*dtype.encode(), *shape])
    a = random.standard_normal(shape)
    if dtype[0] == "c":
        a = a + 1j * random.standard_normal(shape)
    return a.astype(dtype)


def hermitian(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    a = matrices(dtype, shape)
    return a @ a.conj().swapaxes(-1, -2) + np.eye(shape[-1], dtype=dtype)


def assert_close(function, *args, tolerance: float = 5e-6) -> None:
    """Of the same structure, and as close as two orders of summation are."""
    for actual, wanted in both(function, *args):
        scale = np.abs(wanted).max(initial=0, where=np.isfinite(wanted)) + 1e-30
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("dtype", DTYPES)
def test_decompositions(dtype):
    """LAPACK has the choices of signs, orders and of what is beside a triangle."""
    given = [matrices(dtype, shape) for shape in SHAPES]

    def decomposed(given):
        return [
            [
                linalg.lu(a),
                linalg.qr(a, full_matrices=False),
                linalg.qr(a, full_matrices=True),
                linalg.qr(a, pivoting=True, full_matrices=False),
                linalg.svd(a, full_matrices=False),
                linalg.svd(a, full_matrices=True),
                linalg.svd(a, compute_uv=False),
                linalg.svd(a, full_matrices=False, algorithm=linalg.SvdAlgorithm.QR),
            ]
            for a in given
        ]

    assert_close(decomposed, given)


@pytest.mark.parametrize("dtype", DTYPES)
def test_decompositions_of_square_matrices(dtype):
    given = [(matrices(dtype, shape), hermitian(dtype, shape)) for shape in SQUARE]

    def decomposed(given):
        return [
            [
                linalg.cholesky(h),
                linalg.cholesky_p.bind(h),
                [linalg.eigh(h, lower=lower) for lower in (True, False)],
                [linalg.tridiagonal(h, lower=lower) for lower in (True, False)],
                linalg.hessenberg(a),
                linalg.schur(a),
                linalg.schur(a, compute_schur_vectors=False),
                linalg.eig(a),
                linalg.eig(a, compute_left_eigenvectors=False),
                jnp.linalg.eigvals(a),
                jnp.linalg.inv(h),
                jnp.linalg.det(a),
                jnp.linalg.solve(h, a),
            ]
            for a, h in given
        ]

    assert_close(decomposed, given, tolerance=3e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_triangular_systems(dtype):
    a = matrices(dtype, (2, 5, 5)) + 4 * np.eye(5, dtype=dtype)
    left, right = matrices(dtype, (2, 5, 3)), matrices(dtype, (2, 3, 5))

    def solved(a, left, right):
        return [
            linalg.triangular_solve(
                a,
                left if left_side else right,
                left_side=left_side,
                lower=lower,
                transpose_a=transpose,
                conjugate_a=conjugate,
                unit_diagonal=unit,
            )
            for left_side in (True, False)
            for lower in (True, False)
            for transpose in (True, False)
            for conjugate in (True, False)
            for unit in (True, False)
        ]

    assert_close(solved, a, left, right)


def test_of_other_dtypes():
    """Those of 64 bits, and narrow ones, which are decomposed in float32."""
    with jax.enable_x64(True):
        for dtype in ("float64", "complex128"):
            h = hermitian(dtype, (2, 4, 4))
            assert_close(
                lambda h: [linalg.cholesky(h), linalg.eigh(h), linalg.qr(h), linalg.svd(h)],
                h,
                tolerance=1e-13,
            )
    a = np.tril(hermitian("float32", (4, 4))).astype(jnp.bfloat16)
    b = matrices("float32", (4, 3)).astype(jnp.bfloat16)
    found = simulate(lambda a, b: linalg.triangular_solve(a, b, left_side=True, lower=True), a, b)
    assert not found.fallbacks
    wide = np.linalg.solve(a.astype(np.float32), b.astype(np.float32))
    np.testing.assert_array_equal(found.values, wide.astype(jnp.bfloat16))


def test_what_is_composed_of_others():
    a, c = matrices("float32", (2, 5, 3)), matrices("float32", (2, 5, 4))
    h = hermitian("float32", (4, 4))
    diagonals = [matrices("float32", (2, 6)) for _ in range(3)]
    diagonals[1] += 6

    def composed(a, c, h, diagonals, b):
        packed, taus = jnp.linalg.qr(a, mode="raw")
        found = [
            linalg.tridiagonal_solve(*diagonals, b),
            linalg.cholesky_update(linalg.cholesky(h, symmetrize_input=False).T, h[0]),
            linalg.symmetric_product(a, jnp.zeros((2, 5, 5)), alpha=2.0, beta=0.5),
            linalg.lu_pivots_to_permutation(jnp.array([2, 1, 2, 3]), 4),
            linalg.householder_product(packed.mT, taus),
        ]
        if hasattr(linalg, "ormqr"):
            found.append(linalg.ormqr(packed.mT, taus, c, transpose=True))
        return found

    assert_close(composed, a, c, h, diagonals, matrices("float32", (2, 6, 2)))


def test_what_cannot_be_decomposed_is_nan():
    bad = np.stack([np.eye(3, dtype=np.float32), -np.eye(3, dtype=np.float32)])
    with_nan = np.array([[1, np.nan], [2, 3]], np.float32)

    def decomposed(bad, with_nan):
        return [
            linalg.cholesky(bad),
            linalg.lu(0 * bad),
            linalg.eigh(with_nan),
            linalg.svd(with_nan),
            linalg.lu(with_nan),
        ]

    found = both(decomposed, bad, with_nan)
    for actual, wanted in found:
        np.testing.assert_array_equal(actual, wanted)
    assert np.isnan(found[0][0][1]).any()
    assert not np.isnan(found[0][0][0]).any()


def test_pivots_that_are_given_and_empty_matrices():
    """LAPACK takes neither as scipy calls it, so JAX evaluates them."""
    pivots = np.array([0, 0, 1], np.int32)
    a = matrices("float32", (4, 3))
    for function, args in (
        (functools.partial(geqp3()), (a, pivots)),
        (lambda a: linalg.svd(a, full_matrices=True), (np.zeros((3, 0), np.float32),)),
    ):
        found = simulate(function, *args)
        assert found.fallbacks
        for actual, wanted in zip(found.values, jax.jit(function)(*args), strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)


def geqp3():
    import importlib

    return importlib.import_module("jax._src.lax.linalg").geqp3


def test_gradients_of_decompositions():
    h = hermitian("float32", (4, 4))
    b = matrices("float32", (4, 2))

    def slopes(h, b):
        return jax.grad(
            lambda h: sum(
                jnp.sin(part).sum()
                for part in (jnp.linalg.cholesky(h), jnp.linalg.solve(h, b), jnp.linalg.inv(h))
            )
        )(h)

    assert_close(slopes, h, b, tolerance=3e-5)


def test_subsets_of_eigenvalues_and_singular_values():
    """JAX has them on TPUs only."""
    h = hermitian("float32", (5, 5))
    vectors, values = simulate(lambda h: linalg.eigh(h, subset_by_index=(1, 3)), h).values
    wide = np.linalg.eigh(h)
    np.testing.assert_allclose(values, wide[0][1:3], rtol=1e-5)
    np.testing.assert_allclose(np.abs(vectors), np.abs(wide[1][:, 1:3]), atol=1e-4)
    a = matrices("float32", (6, 4))
    u, s, vt = simulate(
        lambda a: linalg.svd(a, full_matrices=False, subset_by_index=(0, 2)), a
    ).values
    assert (u.shape, s.shape, vt.shape) == ((6, 2), (2,), (2, 4))
    np.testing.assert_allclose(s, np.linalg.svd(a)[1][:2], rtol=1e-5)


@pytest.mark.parametrize("size", [1, 7, 8, 12])
def test_fourier_transforms(size):
    """Of one to three axes, of odd and even sizes."""
    real = matrices("float32", (3, size, 5))
    given = matrices("complex64", (3, size, 5))

    def transformed(real, given):
        found = []
        for axes in range(1, 4):
            lengths = real.shape[-axes:]
            found += [lax.fft(given, "FFT", lengths), lax.fft(given, "IFFT", lengths)]
            found += [lax.fft(real, "RFFT", lengths)]
        found += [
            jnp.fft.irfft(given, n=length, axis=-2) for length in (2 * size - 1, 2 * size - 2 or 1)
        ]
        return [*found, jnp.fft.fft(given, n=9), jnp.fft.irfft2(jnp.fft.rfft2(real))]

    assert_close(transformed, real, given)


def test_fourier_transforms_of_64_bits_and_of_nothing():
    with jax.enable_x64(True):
        x = matrices("complex128", (3, 5))
        assert_close(lambda x: [jnp.fft.fft2(x), jnp.fft.rfft(x.real)], x, tolerance=1e-14)
    assert_close(lambda x: jnp.fft.fft(x), np.zeros((0, 4), np.complex64))
