"""``verify``: judge kernels that a model, a search or a stranger wrote."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from pallas_sim import set_platforms
from pallas_sim.chips import DEFAULT_TARGETS, Label
from pallas_sim.errors import OptionError
from pytest_pallas.candidates.criteria import Judge
from pytest_pallas.candidates.source import CandidateSource, candidate_of
from pytest_pallas.candidates.stages import judged
from pytest_pallas.candidates.task import HIDDEN, HIDDEN_DTYPES, TaskInputs, task_of
from pytest_pallas.candidates.verdicts import Report
from pytest_pallas.fixture_types import spelled_out
from pytest_pallas.spec import KernelSpec

#: Where candidates are judged unless the caller says otherwise.
TARGETS = ("tpu-sim:v6e", "tpu-compile:v6e")


#: What of a spec decides whether an answer is right.
_PROPERTIES = ("exact", "relations", "ignored", "tolerance", "deterministic", "nan_ok")


class VerifyKeywords(TypedDict, total=False):
    """The keyword arguments of ``verify`` and ``verify_many``."""

    targets: Sequence[str]
    budget: float
    seed: int | None
    spec: KernelSpec | None
    dtypes: Sequence[str]
    hidden_dtypes: Sequence[str] | None
    sizes: Mapping[str, int] | None
    options: Mapping[str, Any] | None
    differentiable: Sequence[int]
    hidden: int
    stop: bool


#: The default of each of ``VerifyKeywords``.
DEFAULTS: Mapping[str, Any] = {
    "targets": TARGETS,
    "budget": 60.0,
    **dict.fromkeys(("seed", "spec")),
    "dtypes": ("float32",),
    **dict.fromkeys(("hidden_dtypes", "sizes", "options")),
    "differentiable": (),
    "hidden": HIDDEN,
    "stop": True,
}


@spelled_out(VerifyKeywords, DEFAULTS)
def verify(
    kernel: Any,
    reference: Callable[..., Any] | None = None,
    inputs: Any = None,
    **keywords: Unpack[VerifyKeywords],
) -> Report:
    """Judge a kernel that somebody else wrote, whose code never runs in this process.

    A sandboxed process imports and traces it. What is judged is the traced program, which is handed
    over as data; docs/judge.md says what the sandbox promises.

    Args:
      kernel: ``"FILE.py:FUNCTION"``, or a function of a module.
      reference: the same function in jnp. It is trusted, and runs here.
      inputs: shapes such as ``"m k, k n"`` (docs/strategies.md), a hypothesis strategy of calls, a
        sequence of arrays and ``jax.ShapeDtypeStruct``, of whose shapes other values are drawn, or
        a sequence of ``Arguments``: the given call, and the hidden ones.
      targets: simulated chips (``"tpu-sim:v6e"``, ``"gpu-sim:h100"``), and compilers
        (``"tpu-compile:v6e"``), which are used where they are installed.
      budget: seconds for all of it.
      seed: of the draws; by default one that nobody can know before. The report has it.
      spec: a ``KernelSpec`` in place of reference and inputs; its kernel is not run. Its relations,
        tolerance and other properties count.
      dtypes: of the arrays of shapes: one for all, or one for each.
      hidden_dtypes: dtypes of hidden calls, in place of that of the first float; by default the
        usual ones of the chips. Those that the candidate does not serve do not count; () for none.
      sizes: sizes of the first call, by name, such as ``{"m": 256}``.
      options: keyword arguments of kernel and reference: numbers and texts.
      differentiable: positions of arguments; the gradients by these are judged, too.
      hidden: how many calls are drawn that nobody has seen.
      stop: False to run the later stages after a failure, too.

    Raises:
      OptionError: an argument cannot be used.
      ShapeLanguageError: ``inputs`` cannot be understood.
      KernelReferenceError: the reference raised.
      BackendUnavailableError: a target is not there.
    """
    (report,) = verify_many([kernel], reference, inputs, **keywords)
    return report


@spelled_out(VerifyKeywords, DEFAULTS)
def verify_many(
    candidates: Sequence[Any],
    reference: Callable[..., Any] | None = None,
    inputs: Any = None,
    **keywords: Unpack[VerifyKeywords],
) -> Iterator[Report]:
    """Judge several candidates of one task, as ``verify`` judges one; yield a report for each.

    The task is drawn and its reference evaluated once, and the process that traces the candidates
    is kept.

    Args:
      candidates: the kernels.
      reference: see ``verify``, as for the other arguments.
      inputs: see ``verify``.

    Raises:
      OptionError: see ``verify``, as for its other errors.
    """
    unknown = sorted(set(keywords) - set(DEFAULTS))
    if unknown:
        raise TypeError(f"verify() got an unexpected keyword argument {unknown[0]!r}")
    settings: dict[str, Any] = {**DEFAULTS, **keywords}
    set_platforms()
    spec, differentiable = settings["spec"], tuple(settings["differentiable"])
    if spec is not None:
        reference, inputs = reference or spec.reference, spec.inputs if inputs is None else inputs
        differentiable = differentiable or tuple(spec.differentiable)
    if reference is None or inputs is None:
        raise OptionError("give a reference and inputs, or a spec that has both")
    for name, least in (("budget", 1), ("hidden", 0), ("seed", 0)):
        number = settings[name]
        if number is not None and not least <= number < math.inf:
            raise OptionError(f"{name}={number:g}: give a number from {least} on")
    targets = tuple(settings["targets"])
    labels = tuple(map(_label, targets))
    simulators = [label for label in labels if label.name.endswith("-sim")]
    if not simulators:
        raise OptionError(
            f"targets: none of {', '.join(targets)} is a simulator, which runs a kernel"
        )
    sources: list[CandidateSource] = [candidate_of(candidate) for candidate in candidates]
    seed = settings["seed"]
    dtypes = settings["hidden_dtypes"]
    if dtypes is None:
        platforms = [label.name.partition("-")[0] for label in simulators]
        dtypes = dict.fromkeys(dtype for name in platforms for dtype in HIDDEN_DTYPES[name])
    drawn = TaskInputs(
        inputs=inputs,
        dtypes=tuple(settings["dtypes"]),
        hidden_dtypes=tuple(dtypes),
        sizes=dict(settings["sizes"] or {}),
        options=dict(settings["options"] or {}),
        hidden=settings["hidden"],
    )
    seed = secrets.randbits(32) if seed is None else seed
    task = task_of(reference, drawn, seed=seed, differentiable=differentiable)
    properties = {} if spec is None else {name: getattr(spec, name) for name in _PROPERTIES}
    judge = Judge(task, labels, settings["budget"], settings["stop"], properties)
    return (judged(source, judge) for source in sources)


def _label(target: str) -> Label:
    """Return a target with its chip.

    Raises:
      OptionError: it is no simulator and no compiler.
    """
    label = Label.of(target)
    if not label.name.endswith(("-sim", "-compile")):
        raise OptionError(
            f"targets: {target!r} is neither a simulator (tpu-sim, gpu-sim) nor a compiler "
            "(tpu-compile, gpu-compile)"
        )
    platform = label.name.partition("-")[0]
    return label if label.target else Label(label.name, DEFAULT_TARGETS[platform])
