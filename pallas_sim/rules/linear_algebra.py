"""Rules: decompositions, systems of equations and Fourier transforms, by LAPACK and numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pallas_sim.dtypes import Array, compute_dtype, convert, is_complex
from pallas_sim.evaluation import by_jax
from pallas_sim.machine import Thread
from pallas_sim.registry import Equation, Evaluate, rule


@rule("fft")
def _fft(eqn: Equation) -> Evaluate:
    """Transform the last axes by scipy, which keeps float32; numpy does so since version 2."""
    import scipy.fft

    lengths, dtype = tuple(eqn.params["fft_lengths"]), eqn.out.dtype
    kind = eqn.params["fft_type"]
    name = getattr(kind, "name", str(kind)).lower()
    axes = tuple(range(-len(lengths), 0))
    transform = getattr(scipy.fft, f"{name}n")
    if 0 in eqn.ins[0].shape or 0 in eqn.out.shape:
        return lambda x: np.zeros(eqn.out.shape, dtype)

    def evaluate(x: Any) -> Any:
        return transform(x, s=lengths, axes=axes).astype(dtype, copy=False)

    return evaluate


#: Computes the results of one matrix, or of one matrix and what belongs to it, and whether it is
#: right: where it is not, floats become NaN.
Routine = Callable[..., tuple[Sequence[Any], bool]]


def _lapack(eqn: Equation, name: str, results: Routine, **options: Any) -> Evaluate:
    """Evaluate an equation by a routine of LAPACK.

    Args:
      eqn: the equation, of one matrix.
      name: of the routine, without the letter of its dtype.
      results: takes what the routine returns.
      options: further arguments of the routine.
    """
    routine = _routine(eqn, name)
    return _by_matrix(eqn, lambda a: results(*routine(a, **options)), [2])


def _routine(eqn: Equation, name: str) -> Any:
    """Return the routine of LAPACK for the dtype that an equation is computed in."""
    import scipy.linalg

    return scipy.linalg.get_lapack_funcs(name, dtype=compute_dtype(eqn.ins[0].dtype))


def _by_matrix(eqn: Equation, routine: Routine, ranks: Sequence[int]) -> Evaluate:
    """Evaluate an equation for each matrix of a batch.

    Args:
      eqn: the equation.
      routine: takes one matrix, in the dtype that is computed in, and gives its results.
      ranks: how many dimensions each operand of the routine has.
    """
    if any(0 in aval.shape for aval in eqn.ins):
        return by_jax(eqn)  # LAPACK takes no empty matrices
    batch = eqn.ins[0].shape[: len(eqn.ins[0].shape) - ranks[0]]
    several = eqn.origin is None or eqn.origin.primitive.multiple_results

    def evaluate(thread: Thread, *operands: Any) -> Any:
        wide = [convert(np.asarray(operand), compute_dtype(operand.dtype)) for operand in operands]
        outputs = [np.empty(out.shape, compute_dtype(out.dtype)) for out in eqn.outs]
        for index in np.ndindex(batch):
            results, right = routine(*(operand[index] for operand in wide))
            for out, result in zip(outputs, results, strict=True):
                broken = not right and out.dtype.kind in "fc"
                out[index] = np.nan if broken else result
        narrow = [convert(out, aval.dtype) for out, aval in zip(outputs, eqn.outs, strict=True)]
        return narrow if several else narrow[0]

    return evaluate


@rule("cholesky", threaded=True)
def _cholesky(eqn: Equation) -> Evaluate:
    """The lower triangle; above it is what was there, as in JAX on a CPU."""
    return _lapack(
        eqn, "potrf", lambda factor, info: ([factor], info == 0), lower=True, clean=False
    )


@rule("triangular_solve", threaded=True)
def _triangular_solve(eqn: Equation) -> Evaluate:
    import scipy.linalg

    params = eqn.params
    trsm: Any = scipy.linalg.get_blas_funcs("trsm", dtype=compute_dtype(eqn.ins[0].dtype))
    conjugate = params["conjugate_a"]
    transpose = 0 if not params["transpose_a"] else 2 if conjugate else 1
    options = {
        "side": not params["left_side"],
        "lower": params["lower"],
        "trans_a": transpose,
        "diag": params["unit_diagonal"],
    }

    def routine(a: Array, b: Array) -> Any:
        a = np.conj(a) if conjugate and not transpose else a
        return [trsm(1.0, a, b, **options)], True

    return _by_matrix(eqn, routine, [2, 2])


@rule("lu", threaded=True)
def _lu(eqn: Equation) -> Evaluate:
    def results(factors: Array, pivots: Array, info: int) -> Any:
        order = np.arange(len(factors), dtype=np.int32)
        for row, pivot in enumerate(pivots):
            order[[row, pivot]] = order[[pivot, row]]
        return [factors, pivots, order], info >= 0

    return _lapack(eqn, "getrf", results)


@rule("geqrf", threaded=True)
def _geqrf(eqn: Equation) -> Evaluate:
    return _lapack(eqn, "geqrf", lambda factors, taus, *_: ([factors, taus], True))


@rule("geqp3", threaded=True)
def _geqp3(eqn: Equation) -> Evaluate:
    """Let JAX evaluate it where pivots are given, because scipy takes none."""
    geqp3 = _routine(eqn, "geqp3")

    def routine(a: Array, _: Array) -> Any:
        return geqp3(a)[:3], True

    free, with_pivots = _by_matrix(eqn, routine, [2, 1]), by_jax(eqn)
    return lambda thread, a, pivots: (with_pivots if pivots.any() else free)(thread, a, pivots)


@rule("householder_product", threaded=True)
def _householder_product(eqn: Equation) -> Evaluate:
    routine = _routine(eqn, "ungqr" if is_complex(eqn.out.dtype) else "orgqr")
    return _by_matrix(eqn, lambda a, taus: ([routine(a, taus)[0]], True), [2, 1])


@rule("eigh", threaded=True)
def _eigh(eqn: Equation) -> Evaluate:
    """Eigenvectors and eigenvalues, the least first."""
    first, end = eqn.params.get("subset_by_index") or (0, eqn.ins[0].shape[-1])

    def results(values: Array, vectors: Array, info: int) -> Any:
        return [vectors[:, first:end], values[first:end]], info == 0

    name = "heevd" if is_complex(eqn.ins[0].dtype) else "syevd"
    return _lapack(eqn, name, results, lower=eqn.params["lower"])


@rule("eig", threaded=True)
def _eig(eqn: Equation) -> Evaluate:
    left, right = (bool(eqn.params[f"compute_{side}_eigenvectors"]) for side in ("left", "right"))

    def results(*returned: Any) -> Any:
        *values, lefts, rights, info = returned
        eigenvalues = values[0] if len(values) == 1 else values[0] + 1j * values[1]
        chosen = [lefts] * left + [rights] * right
        if len(values) == 2:
            chosen = [_unpacked(vectors, values[1]) for vectors in chosen]
        return [eigenvalues, *chosen], info == 0

    return _lapack(eqn, "geev", results, compute_vl=left, compute_vr=right)


def _unpacked(vectors: Array, imaginary: Array) -> Array:
    """Return complex eigenvectors. A conjugate pair comes as a real and an imaginary column."""
    result = vectors.astype(np.result_type(vectors.dtype, np.complex64))
    for column in np.flatnonzero(imaginary > 0):
        result[:, column] = vectors[:, column] + 1j * vectors[:, column + 1]
        result[:, column + 1] = result[:, column].conj()
    return result


@rule("svd", threaded=True)
def _svd(eqn: Equation) -> Evaluate:
    """Singular values, and singular vectors if the program wants them."""
    params = eqn.params
    by_qr = getattr(params.get("algorithm"), "name", "") == "QR"
    vectors, full = params["compute_uv"], bool(params["full_matrices"])
    first, end = params.get("subset_by_index") or (0, min(eqn.ins[0].shape[-2:]))

    def results(u: Array, s: Array, vt: Array, info: int) -> Any:
        if not vectors:
            return [s[first:end]], info == 0
        if not full:
            u, vt = u[:, first:end], vt[first:end]
        return [s[first:end], u, vt], info == 0

    name = "gesvd" if by_qr else "gesdd"
    return _lapack(eqn, name, results, compute_uv=vectors, full_matrices=full)


@rule("schur", threaded=True)
def _schur(eqn: Equation) -> Evaluate:
    gees = _routine(eqn, "gees")
    vectors = eqn.params["compute_schur_vectors"]

    def routine(a: Array) -> Any:
        form, *_, basis, _, info = gees(lambda *_: False, a, compute_v=vectors)
        return [form, basis] if vectors else [form], info == 0

    return _by_matrix(eqn, routine, [2])


@rule("hessenberg", threaded=True)
def _hessenberg(eqn: Equation) -> Evaluate:
    return _lapack(eqn, "gehrd", lambda form, taus, info: ([form, taus], info == 0))


@rule("tridiagonal", threaded=True)
def _tridiagonal(eqn: Equation) -> Evaluate:
    name = "hetrd" if is_complex(eqn.ins[0].dtype) else "sytrd"
    return _lapack(
        eqn, name, lambda *outputs: (outputs[:4], outputs[4] == 0), lower=eqn.params["lower"]
    )
