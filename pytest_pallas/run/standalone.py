"""``pytest_pallas.check``: verify a kernel in a script, a notebook or any test framework."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from pallas_sim import set_platforms
from pallas_sim.chips import accumulations
from pallas_sim.errors import OptionError, PallasError
from pytest_pallas.backends.devices import simulate
from pytest_pallas.backends.protocol import Backend, chip_of, label
from pytest_pallas.backends.registry import select
from pytest_pallas.checks import Check
from pytest_pallas.compile.service import Service
from pytest_pallas.database import parse_places
from pytest_pallas.fixture_types import DEFAULTS, CheckKeywords, spelled_out
from pytest_pallas.options import PROFILES, Options
from pytest_pallas.run.backends import on_claimed_chips, without_replaced
from pytest_pallas.run.call_arguments import listed, refuse_others
from pytest_pallas.run.calls import check_kernel
from pytest_pallas.session import Harness, Session, SpecFacts
from pytest_pallas.spec import KernelSpec

if TYPE_CHECKING:
    from pytest_pallas.judge.oracle import ExpectedCache

#: The keyword arguments that ``pallas_check`` takes from pytest's options and marks.
_OF_THE_RUN = (
    *("backend", "seed", "timeout", "sanitize", "max_examples", "devices", "arithmetic"),
    *("read_fences", "schedules", "witness"),
)


@spelled_out(CheckKeywords, DEFAULTS)
def check(
    kernel: Callable[..., Any] | KernelSpec,
    /,
    *args: Any,
    reference: Callable[..., Any] | None = None,
    backend: str = "auto",
    seed: int = 0,
    timeout: float = 60.0,
    sanitize: str | Sequence[str] = "all",
    max_examples: int | None = None,
    devices: int | None = None,
    arithmetic: str = "",
    read_fences: str = "",
    schedules: int | None = None,
    witness: str = "",
    **keywords: Unpack[CheckKeywords],
) -> Any:
    """Verify a kernel against its reference: ``check(kernel, *args, reference=jnp_function)``.

    It needs no pytest session, and reads none of its options: a script, a notebook, ``unittest``,
    absltest and Bazel can call it. The fixture ``pallas_check`` does the same in a test of pytest,
    on every selected backend, and adds the results to the report.

    The kernel's error against the reference in float64 may be at most twice that of the reference
    in the kernel's own dtypes, plus a few ulps.

    Args:
      kernel: a function, called ``kernel(*args, **options, **tuning)``; or a ``KernelSpec``, which
        has its own properties.
      args: positional arguments: arrays of any shapes and dtypes, pytrees of them, anything else.
        One ``Arguments`` stands for a whole call. A spec needs none: it draws examples.
      backend: ``"NAME"`` or ``"NAME:TARGET"``, such as ``"tpu-sim:v6e"`` or ``"gpu-compile:h100"``.
        ``"auto"`` is the accelerator if there is one, otherwise the simulator; for a spec, the
        first of these that it claims.
      checks: checks and sanitizers, or their names; by default ``"forward"``, and for a spec all
        that apply. ``"all"`` leaves out checks that do not apply, and ``oracle-strength``.
      options: keyword arguments of kernel and reference.
      tuning: keyword arguments of the kernel only.
      mesh: a ``jax.sharding.Mesh``, or the sizes of its axes, over simulated devices or the
        backend's hardware; kernel and reference get it as ``mesh=``.
      seed: seed of the examples of a spec.
      timeout: time limit in seconds for blocked devices and for each compilation.
      sanitize: the sanitizers of every run: ``"all"``, ``"none"`` or names.
      max_examples: number of examples of a spec; by default as in pytest.
      devices: number of simulated CPU devices, if JAX has not started; by default that of the
        environment, or 8.
      arithmetic: how a simulated chip computes: as the chip (``"chip"``: sums of tensor cores,
        functions of GPUs, passes of TPUs), or in ``"float32"``; by default ``"chip"`` on H100 and
        H200.
      read_fences: which TMA copies of a simulated GPU need a fence after threads have read what
        they overwrite: ``"kernel"``, those that the kernel starts itself (the default), ``"all"``,
        also those of JAX's pipelines, or ``"none"``.
      schedules: the most runs of the kernel in other orders of its threads and copies, on a
        simulator; by default 20. 1: none.
      witness: the order in which ``forward``, ``races``, ``dma``, ``deadlock`` and ``schedule`` run
        the kernel, as a failure names it. A kernel that was changed since runs as without it.
      reference: the same function in jnp, called ``reference(*args, **options)``. A function needs
        it, except on a compiling backend.
      exact: whether small integers held in floats must give a bitwise equal output, or the largest
        integer for which they must.
      differentiable: positions of the arguments to differentiate by, for ``gradient``.
      batch_axes: for ``sharding``, as in ``KernelSpec``.
      relations: for ``linearity``, ``permutation`` and ``relation``, as in ``KernelSpec``.
      implementations: for ``cross``, other implementations by name, as in ``KernelSpec``.
      peers: for ``cross``, names of other backends; or a mapping from these to the function that
        runs there. A spec takes names.
      ignored: for ``padding``, as in ``KernelSpec``.
      raises: for ``raises``, as in ``KernelSpec``.
      claimed: for ``grid``, the backends that the kernel is written for; see ``KernelSpec``.
      tolerance: a ``Tolerance``, a number for ``rtol`` and ``atol``, fields by name, such as
        ``{"rtol": 1e-3}``, or a mapping from dtype and backend to one of these.
      deterministic: False if two right runs may differ in their last bits, as in ``KernelSpec``.
      nan_ok: whether NaN is a right output for finite inputs.
      check_dtype: whether the kernel must return the reference's dtypes.
      jit: False for a kernel that needs the values of its arguments.
      name: the name of the kernel in messages.

    Returns:
      The outputs of the kernel, as numpy arrays; on a compiling backend, which does not execute it,
        the ``CompileReport``; None for drawn examples.

    Raises:
      MismatchError: an output is wrong; the message has the location and the error.
      KernelError: the kernel raised, raced, hung or did not compile; it has a subclass for each.
      KernelReferenceError: the reference raised, or a kernel cannot be compared with its outputs.
      NotApplicableError: a named check does not apply.
      BackendUnavailableError: the backend is not available on this machine.
      DeviceError: there are too few devices, or JAX has already started.
      OptionError: the arguments contradict each other.
      TypeError: an unknown keyword argument, or no reference.
    """
    __tracebackhide__ = True
    refuse_others(kernel)
    set_platforms()
    count = simulate(devices or Options.devices, os.environ, explicit=devices is not None)
    own = tuple(one for one in listed(keywords.get("checks", ())) if isinstance(one, Check))
    peers = _names_of_peers(kernel, keywords)
    settings: dict[str, Any] = {"seed": seed, "timeout": timeout, "sanitize": sanitize}
    of_simulators = {"arithmetic": arithmetic, "read_fences": read_fences}
    settings |= {name: value for name, value in of_simulators.items() if value}
    if schedules is not None:
        settings["schedules"] = schedules
    if max_examples is not None:
        settings["max_examples"] = max_examples
    run = _run_options(settings, count, (*peers, backend))
    session = _Session(options=run, harness=Harness(checks=lambda: own), saved_witness=witness)
    try:
        chosen = _backend(session, kernel, backend, peers)
        if arithmetic and chosen.kind == "simulating":
            accumulations(chip_of(chosen).name, arithmetic)  # which rejects what is not known
        return check_kernel(session, chosen, kernel, args, reference, keywords, also=_OF_THE_RUN)
    except PallasError as error:
        # A traceback through this package would hide the message.
        raise error.with_traceback(None) from error.__cause__


def calls_checker(backend: str, timeout: float, cache: ExpectedCache) -> Callable[..., Any]:
    """Return a function that checks calls of programs on a backend, in one session.

    It does what ``check`` does, but for the look for state that user code leaves changed.

    Args:
      backend: ``"NAME"`` or ``"NAME:TARGET"``.
      timeout: time limit in seconds, as that of ``check``.
      cache: of expected values, which several sessions may share.

    Raises:
      OptionError: an unknown name.
      BackendUnavailableError: it is not available here.
    """
    set_platforms()
    count = simulate(Options.devices, os.environ, explicit=False)
    options = _run_options({"timeout": timeout}, count, (backend,))
    session = _Session(options=options, only_programs=True)
    session.cache = cache
    chosen = _backend(session, None, backend, ())

    def checked(kernel: Any, args: tuple[Any, ...], reference: Any, **keywords: Any) -> Any:
        session.results.clear()
        try:
            return check_kernel(session, chosen, kernel, args, reference, keywords)
        except PallasError as error:
            raise error.with_traceback(None) from error.__cause__

    return checked


class _Session(Session):
    """A session for one call of ``check``."""

    @functools.cached_property
    def service(self) -> Service:
        """The compilers of this process, kept because their start takes longer than a call."""
        return _shared().service


@functools.cache
def _shared() -> Session:
    return Session(options=Options())


def _run_options(settings: Mapping[str, Any], devices: int, backend: tuple[str, ...]) -> Options:
    """Return the options of one call."""
    usual = Options(
        **PROFILES[Options.profile],
        backend=backend,
        devices=devices,
        database=parse_places("none"),
    )
    return usual.replaced(where="check", **settings)


def _names_of_peers(kernel: Any, keywords: Any) -> tuple[str, ...]:
    """Return the peers of a spec, which are names of backends."""
    if not isinstance(kernel, KernelSpec):
        return ()
    peers = keywords.pop("peers", ())
    if isinstance(peers, Mapping):
        raise OptionError(f"{kernel.name}: peers= of a spec must be names of backends")
    return (peers,) if isinstance(peers, str) else tuple(peers)


def _backend(session: Session, kernel: Any, word: str, peers: Sequence[str]) -> Backend:
    """Return the backend of a word.

    Raises:
      OptionError: an unknown name, or a word for several backends, or for none of a spec's.
      BackendUnavailableError: it is not available here.
    """
    __tracebackhide__ = True
    chosen = select((word,), session.families)
    if chosen.named:
        if len(chosen.backends) > 1:
            labels = ", ".join(map(label, chosen.backends))
            raise OptionError(f"backend={word!r} stands for several backends ({labels}); give one")
        return next(iter(chosen.backends))
    if not isinstance(kernel, KernelSpec):
        return session.backends_for([])[0][0]
    backends, automatic = on_claimed_chips(session, kernel, chosen.backends, chosen.automatic)
    backends = without_replaced(SpecFacts(), kernel, backends, automatic, session.options.timeout)
    labels = {label(backend): backend for backend in backends}
    claimed = [name for name in labels if kernel.claims(name) and name not in peers]
    if not claimed:
        raise OptionError(
            f"{kernel.name} claims none of {', '.join(labels)}, which backend="
            f"{word!r} means; give backend=, one of {', '.join(kernel.claimed)}"
        )
    return labels[claimed[0]]
