"""Checks and sanitizers: each is a function in a module of this package, with a decorator.

``@declare_check`` declares a check: one question about a kernel, such as whether it equals its
reference. ``@declare_sanitizer`` declares a check for errors that an output need not show, such as
races; ``--pallas-sanitize`` selects those, too. ``context`` has what both run on, and
``metamorphic`` what several of them share.

Importing this package does not import jax; the modules do. Therefore ``MODULES`` and
``SANITIZER_MODULES`` list the names, and a test compares them with the declarations.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pytest_pallas.backends.protocol import Backend
    from pytest_pallas.checks.context import CheckContext, CheckResult
    from pytest_pallas.draw.arguments import Arguments
    from pytest_pallas.grid.kernel_calls import KernelCall
    from pytest_pallas.spec import KernelSpec


#: A function and its positional arguments.
Program = tuple[Callable[..., Any], tuple[Any, ...]]

#: Runs a check on one drawn example.
type Run = Callable[[CheckContext], CheckResult]

#: What a check requires of the kernels of a call on a backend.
type KernelRequirement = Callable[[KernelSpec, Backend, Sequence[KernelCall]], str | None]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One question about a kernel. Projects add their own with ``pytest_pallas_checks``.

    ``@declare_check`` and ``@declare_sanitizer`` make one of a function, which can be called as
    before.

    A requirement returns the reason why the check does not apply, as a sentence, or None.

    Attributes:
      name: as written in ``--pallas-checks`` and in test ids.
      asks: the question, in a few words.
      run: runs the check on one drawn example. It raises what the kernel raises.
      kind: ``"sanitizer"`` for a check that looks for errors that an output need not show, such as
        races. ``--pallas-sanitize`` selects it, too.
      requires_spec: what the check requires of a spec.
      requires_backend: what it requires of a backend.
      requires_peers: what it requires of a spec and the other backends to compare with.
      requires_kernels: what it requires of the kernels that JAX traced for one call. Collection
        evaluates it on a few calls, and leaves out a check that applies to none of them; so it must
        not depend on shapes. ``run`` raises ``NotApplicableError`` for what only an example shows.
      example_fraction: the fraction of ``--pallas-max-examples`` that it draws: less than 1 for a
        check with expensive examples.
      min_examples: the minimum number of examples, for a check whose conclusion needs several.
      opt_in: whether it runs only if it is named; ``all`` does not include it.
      program: the call that a compiling backend compiles in place of ``run``; None if there is
        nothing to compile that another check does not compile.
      conclude: called after the last example with the ``evidence`` of all results. It returns what
        is wrong over all examples together, or None.
      evidence: the dataclass of the ``evidence``, which other processes may have found: they send
        it as data. None for plain values: numbers, texts, collections of those.
      subjects: returns the parts of the check that apply to a drawn call, such as the relations
        that hold for it. Sampling selects examples so that all parts run. None if the check has no
        such parts.
      base: whether all other checks depend on this one: if the kernel raises in it, the others do
        not run. Only ``forward`` is.
      executes: whether it executes the kernel, rather than only tracing it.
      tries_mutants: whether it runs on mutants. False if it runs no kernel, or calls it in a way
        that ignores mutants.
      differentiates: whether it calls the kernel's gradient: ``"only"`` that, ``"also"``, or
        ``"no"``. It does not run on a mutant that is not in those programs.
      varies_calls: whether it also calls the kernel with other shapes or options than the drawn
        ones, so that it may run any mutant.
      every_mesh: whether it draws each number of devices at least once, if its spec draws meshes.
      watches: the field of ``Call`` that is set in the runs of every check while this sanitizer is
        chosen, or "".
    """

    name: str
    asks: str
    run: Run
    kind: Literal["check", "sanitizer"] = "check"
    requires_spec: Callable[[KernelSpec], str | None] = lambda _: None
    requires_backend: Callable[[Backend], str | None] = lambda _: None
    requires_peers: Callable[[KernelSpec, Sequence[Backend]], str | None] = lambda *_: None
    requires_kernels: KernelRequirement | None = None
    example_fraction: float = 1.0
    min_examples: int = 1
    opt_in: bool = False
    program: Callable[[CheckContext], Program] | None = None
    conclude: Callable[[Sequence[Any]], str | None] | None = None
    evidence: type[Any] | None = None
    subjects: Callable[[KernelSpec, Arguments], Collection[Any]] | None = None
    base: bool = False
    executes: bool = True
    tries_mutants: bool = True
    differentiates: Literal["no", "also", "only"] = "no"
    varies_calls: bool = False
    every_mesh: bool = False
    watches: Literal["", "races", "dma"] = ""

    def __call__(self, context: CheckContext) -> CheckResult:
        """Run the check on one drawn example: ``run``."""
        return self.run(context)

    def unmet(
        self, spec: KernelSpec, backend: Backend, others: Sequence[Backend] = ()
    ) -> str | None:
        """Return the reason why the check does not apply to a spec on a backend, or None.

        ``others`` are the backends that executed the spec before this one.
        """
        return (
            self.requires_spec(spec)
            or self.requires_backend(backend)
            or self.requires_peers(spec, others)
        )

    def examples(self, most: int) -> int:
        """Return the number of examples that it draws if ``most`` are allowed."""
        return max(self.min_examples, round(most * self.example_fraction))


def declare_check(name: str, *, asks: str, **fields: Any) -> Callable[[Run], Check]:
    """Declare a check: ``@declare_check("flat", asks="is it element by element?")``.

    The decorated function is ``run``; ``fields`` are any others of ``Check``.

    Raises:
      TypeError: ``Check`` has no such field.
    """

    def declare(run: Run) -> Check:
        declared = Check(name=name, asks=asks, run=run, **fields)
        object.__setattr__(declared, "__doc__", run.__doc__)
        return declared

    return declare


def declare_sanitizer(name: str, *, asks: str, **fields: Any) -> Callable[[Run], Check]:
    """Declare a sanitizer: a check that ``--pallas-sanitize`` chooses, too."""
    return declare_check(name, asks=asks, kind="sanitizer", **fields)


#: The module of each check, in the order in which the checks run.
MODULES: Mapping[str, str] = {
    "forward": "forward",
    "gradient": "transformations",
    "vmap": "transformations",
    "determinism": "forward",
    "immutability": "donation",
    "dtype": "dtype",
    "jit": "forward",
    "export": "export",
    "blocks": "forward",
    "sharding": "sharding",
    "linearity": "relations",
    "permutation": "relations",
    "relation": "relations",
    "raises": "raises",
    "cross": "cross",
    "padding": "padding",
    "grid": "grid",
    "oracle-strength": "oracle_strength",
}

#: The module of each sanitizer, in the order in which the sanitizers run.
SANITIZER_MODULES: Mapping[str, str] = {
    "races": "schedule",
    "dma": "schedule",
    "deadlock": "schedule",
    "schedule": "schedule",
    "memory": "memory",
    "donation": "donation",
    "device": "device",
    "synchronization": "synchronization",
}

#: The names of the checks, and those of the sanitizers.
NAMES, SANITIZERS = tuple(MODULES), tuple(SANITIZER_MODULES)


@functools.cache
def declared_checks() -> tuple[Check, ...]:
    """Return the checks of this package, in order. Imports their modules, and with them JAX."""
    return _declared(MODULES)


@functools.cache
def declared_sanitizers() -> tuple[Check, ...]:
    """Return the sanitizers of this package, in order. Imports their modules, and with them JAX."""
    return _declared(SANITIZER_MODULES)


def _declared(modules: Mapping[str, str]) -> tuple[Check, ...]:
    """Return checks by their names, from the modules that declare them."""
    return tuple(
        getattr(importlib.import_module(f"{__name__}.{module}"), name.replace("-", "_"))
        for name, module in modules.items()
    )
