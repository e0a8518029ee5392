"""The only module that touches private names of JAX, pytest or hypothesis.

One function a fact, each with the versions in which it was seen. When a new JAX release moves
something, this is the file to mend.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import logging
import math
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, cast

# --- The interpreters -----------------------------------------------------------------------------


def _interpreters() -> list[Any]:
    """The modules that hold ``_shared_memory``, of the interpreters that were used so far.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    names = (
        "jax._src.pallas.mosaic.interpret.interpret_pallas_call",
        "jax._src.pallas.mosaic_gpu.interpret.gpu_callbacks",
    )
    return [sys.modules[name] for name in names if name in sys.modules]


def reset_interpreters() -> None:
    """Forget the state of the TPU and GPU interpreters, as is due after an exception in them.

    ``reset_gpu_interpret_mode_state`` has no public name. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    for module in _interpreters():
        for name in ("reset_tpu_interpret_mode_state", "reset_gpu_interpret_mode_state"):
            if hasattr(module, name):
                getattr(module, name)()


def fail_interpreters(error: Exception) -> bool:
    """Make every simulated device that waits in an interpreter raise ``error``.

    The interpreters' waits poll ``check_failed``, so this ends a deadlock without killing the
    process. ``top_level=False`` because the caller is none of the simulated devices: it must not
    take a place at their clean-up barrier. True if there was an interpreter to stop.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    stopped = False
    for module in _interpreters():
        memory = getattr(module, "_shared_memory", None)
        if memory is not None:
            memory.set_failed(error, top_level=False)
            stopped = True
    return stopped


@contextmanager
def mended_tpu_interpreter() -> Generator[None]:
    """Let the TPU interpreter run two kinds of kernels that the compiler takes.

    A kernel that is vmapped and has ``dimension_semantics``: the batch is a new leading grid
    dimension, which the user's tuple does not count; the interpreter zips the two and raises. The
    members of a batch are independent, so that dimension is as parallel as the one behind it.

    A kernel with ``input_output_aliases`` whose blocks overhang the array: the interpreter returns
    the aliased output with its padding, and lowering fails.

    Seen in JAX 0.11.2 and 0.12.0.1; does nothing where the lengths and shapes agree.
    """
    module: Any = importlib.import_module("jax._src.pallas.mosaic.interpret.interpret_pallas_call")
    semantics_of = module._get_parallel_dim_semantics
    interpret = module.interpret_pallas_call

    def counted(params: Any, dimensions: int) -> tuple[bool, ...]:
        semantics = semantics_of(params, dimensions)
        missing = dimensions - len(semantics)
        return (*([semantics[0]] * missing if semantics else []), *semantics)

    def cropped(*args: Any, out_avals: Any, **params: Any) -> list[Any]:
        outputs = interpret(*args, out_avals=out_avals, **params)
        return [
            output if output.shape == aval.shape else output[tuple(map(slice, aval.shape))]
            for output, aval in zip(outputs, out_avals, strict=True)
        ]

    module._get_parallel_dim_semantics = counted
    module.interpret_pallas_call = cropped
    try:
        yield
    finally:
        module._get_parallel_dim_semantics = semantics_of
        module.interpret_pallas_call = interpret


@contextmanager
def printed_races() -> Generator[list[str]]:
    """Collect the races that the interpreters print instead of raising.

    JAX 0.11.2 has no ``on_race`` and prints; 0.12.0.1 raises, and this collects nothing.
    """
    races: list[str] = []

    def collect(*words: object, **options: object) -> None:
        del options
        races.append(" ".join(map(str, words)))

    modules: list[Any] = [
        importlib.import_module(f"jax._src.pallas.{kind}.interpret.race_detection_state")
        for kind in ("mosaic", "mosaic_gpu")
    ]
    for module in modules:
        module.print = collect  # shadows the builtin for that module
    try:
        yield races
    finally:
        for module in modules:
            del module.print


@contextmanager
def quiet_callbacks() -> Generator[None]:
    """Keep JAX from logging the traceback of a callback that fails: the error itself has it.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    logger = logging.getLogger("jax._src.callback")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def clear_effect_tokens() -> None:
    """Drop the ordered-effect tokens of this process.

    The interpreters' callbacks are ordered effects. A callback that fails leaves its error in
    the token, and the next kernel, which waits for that token, fails with the previous one's
    error. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    importlib.import_module("jax._src.dispatch").runtime_tokens.clear()


# --- The compilers --------------------------------------------------------------------------------


@contextmanager
def exact_exports() -> Generator[None]:
    """Let ``jax.export`` lower kernels as ``jax.jit`` does, and alike wherever that is called.

    By default it lowers for compilers that are older than this JAX, and notes with every operation
    the whole call stack, down to the test runner's. The user's own line is noted still. The options
    have no public context managers. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    config: Any = importlib.import_module("jax._src.config")
    with (
        config.export_ignore_forward_compatibility(True),
        config.include_full_tracebacks_in_locations(False),
    ):
        yield


@contextmanager
def interpret_ignored() -> Generator[None]:
    """Make every Pallas kernel that is traced one to compile, whatever it says of interpret=.

    Many packages choose ``interpret=True`` by themselves where the default backend is the CPU. All
    ways to a kernel, also those imported by name, end in the ``bind`` of a primitive. Seen in JAX
    0.11.2 and 0.12.0.1.
    """
    primitives = _kernel_primitives()
    _hide_this_file()

    def compiled(primitive: Any) -> Any:
        def bind(*args: Any, **params: Any) -> Any:
            if "interpret" in params:
                params["interpret"] = False
            return type(primitive).bind(primitive, *args, **params)

        return bind

    for primitive in primitives:
        primitive.bind = compiled(primitive)
    try:
        yield
    finally:
        for primitive in primitives:
            del primitive.bind


@functools.cache
def _hide_this_file() -> None:
    """Keep JAX from taking a line of this file for the user's, where it wraps a function of JAX.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    importlib.import_module("jax._src.source_info_util").register_exclusion(__file__)


@contextmanager
def devices_answer(chip: Any, names: Sequence[str]) -> Generator[None]:
    """Let this process' devices answer as a chip does, and meshes of them be meshes of it.

    Kernels ask ``jax.default_backend()`` and ``jax.devices()[0]`` which platform, chip and number
    of cores they have, also for choosing ``interpret=`` or no kernel at all. JAX itself asks other
    functions for what it does on the devices that are there. ``Mesh.abstract_mesh`` is cached and
    says "cpu". Seen in JAX 0.11.2 and 0.12.0.1.

    Args:
      chip: a ``jax.sharding.AbstractDevice`` with ``answer(name)``.
      names: attributes of ``jax.Device`` that it answers.
    """
    import jax

    mesh: Any = importlib.import_module("jax._src.mesh")

    def answering(name: str) -> Any:
        return property(lambda _: chip.answer(name))

    def abstract_mesh(of: Any) -> Any:
        if not of.axis_names:
            return mesh.empty_abstract_mesh
        return mesh.AbstractMesh(
            of.axis_sizes, of.axis_names, axis_types=of.axis_types, abstract_device=chip
        )

    with ExitStack() as stack:
        for name in names:
            stack.enter_context(_replaced(jax.Device, name, answering(name)))
        stack.enter_context(_replaced(mesh.Mesh, "abstract_mesh", property(abstract_mesh)))
        stack.enter_context(_replaced(jax, "default_backend", lambda: chip.platform))
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Generator[None]:
    """Set an attribute of a class or module, and put back what was there, if it was."""
    before = vars(owner).get(name, owner)  # owner: nothing was there
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is owner:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _kernel_primitives() -> list[Any]:
    """The primitives named in ``KERNEL_PRIMITIVES``, of the JAX that is installed."""
    places = ("pallas_call:pallas_call_p", "core:core_map_p", "mpmd:mpmd_map_p")
    found: list[Any] = []
    for place in places:
        module, _, name = place.partition(":")
        with suppress(ImportError):
            primitive = getattr(importlib.import_module(f"jax._src.pallas.{module}"), name, None)
            found += [] if primitive is None else [primitive]
    return found


# --- Jaxprs ---------------------------------------------------------------------------------------

#: Primitives that run a Pallas kernel: ``pl.pallas_call``, and what ``pl.kernel`` and
#: ``plgpu.kernel`` become. Seen in JAX 0.11.2 (``core_map``) and 0.12.0.1 (``mpmd_map``).
KERNEL_PRIMITIVES = frozenset({"pallas_call", "core_map", "mpmd_map"})


def sub_jaxprs(eqn: Any) -> Iterator[Any]:
    """The open jaxprs inside the parameters of an equation.

    ``jax.core`` exports no such walk. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    stack = list(eqn.params.values())
    while stack:
        value = stack.pop()
        if hasattr(value, "eqns"):
            yield value
        elif hasattr(value, "jaxpr") and hasattr(value.jaxpr, "eqns"):
            yield value.jaxpr
        elif isinstance(value, (tuple, list)):
            stack.extend(cast("Sequence[Any]", value))


def written_inputs(jaxpr: Any) -> frozenset[int]:
    """Positions of the refs of a kernel's jaxpr that its body writes, by its effects.

    An effect names its ref by variable (or, where none is in scope, by position). Seen in JAX
    0.11.2 and 0.12.0.1.
    """
    positions = {var: i for i, var in enumerate(jaxpr.invars)}
    written: set[int] = set()
    for effect in jaxpr.effects:
        if type(effect).__name__ in ("WriteEffect", "AccumEffect"):
            index = effect.input if isinstance(effect.input, int) else positions.get(effect.input)
            if index is not None:
                written.add(index)
    return frozenset(written)


def source_line(eqn: Any) -> str | None:
    """``file:line`` of the user's code that made an equation, or None.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    info = importlib.import_module("jax._src.source_info_util")
    frame = info.user_frame(getattr(eqn.source_info, "traceback", None))
    return None if frame is None else f"{frame.file_name}:{frame.start_line}"


def eval_jaxpr(jaxpr: Any, consts: Sequence[Any], *args: Any) -> list[Any]:
    """Evaluate an open jaxpr. ``jax.core.eval_jaxpr`` is deprecated; its home is private.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    return importlib.import_module("jax._src.core").eval_jaxpr(jaxpr, consts, *args)


def kernel_name(eqn: Any) -> str:
    """The name of the Pallas kernel that an equation runs.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    if eqn.params.get("name"):
        return str(eqn.params["name"])
    for body in sub_jaxprs(eqn):
        info = getattr(body, "debug_info", None)
        if info is not None and getattr(info, "func_name", None):
            return str(info.func_name)
    return eqn.primitive.name


def block_programs(
    eqn: Any, output: int, index: Sequence[int], *, most_programs: int = 65_536
) -> tuple[tuple[int, ...], tuple[int, ...], list[tuple[int, ...]]] | None:
    """Which programs of a ``pallas_call`` write element ``index`` of its output ``output``.

    Returns the shape of the block (1 for squeezed dims), the index of the block, and the grid
    points whose index map gives that block, in grid order; None where that cannot be told from
    the equation alone: a dynamic grid, an index map that reads scalar-prefetch operands, element
    windows, or a grid of more than ``most_programs`` points.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    mapping = eqn.params["grid_mapping"]
    block = mapping.block_mappings[mapping.num_inputs + output]
    grid = mapping.grid
    if not all(isinstance(n, int) for n in grid) or math.prod(grid) > most_programs:
        return None
    sizes: list[int] = []
    for dim in block.block_shape:
        kind = type(dim).__name__
        if kind == "Squeezed" or dim is None:
            sizes.append(1)
        elif kind in ("Blocked", "int"):
            sizes.append(int(getattr(dim, "block_size", dim)))
        else:
            return None
    closed = block.index_map_jaxpr
    jaxpr, consts = getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())
    used = {var for inner in jaxpr.eqns for var in inner.invars if not hasattr(var, "val")}
    if any(var in used for var in jaxpr.invars[len(grid) :]):
        return None
    wanted = tuple(i // size for i, size in zip(index, sizes, strict=True))
    if not grid:
        return tuple(sizes), wanted, [()]  # one program, whose block is the whole output
    import jax
    import numpy as np

    points = np.indices(grid).reshape(len(grid), -1).astype(np.int32)
    padding = [0] * (len(jaxpr.invars) - len(grid))
    # One batched evaluation: point by point would cost a millisecond each.
    blocks = jax.vmap(lambda *point: eval_jaxpr(jaxpr, consts, *point, *padding))(*points)
    hit = np.all([np.asarray(b) == w for b, w in zip(blocks, wanted, strict=True)], axis=0)
    programs = [tuple(int(i) for i in point) for point in points[:, hit].T]
    return tuple(sizes), wanted, programs


# --- hypothesis -----------------------------------------------------------------------------------


def set_database_key(test: Any, key: str) -> None:
    """Name the entry of hypothesis' example database that a ``@given`` test uses.

    By default that is a digest of its source, which tests made in a loop share. Hypothesis' own
    pytest plugin sets the same attribute. Seen in hypothesis 6.131 to 6.170.
    """
    inner = test.hypothesis.inner_test
    inner._hypothesis_internal_add_digest = hashlib.sha384(key.encode()).digest()


def hypothesis_profile() -> str:
    """The name of hypothesis' profile, without importing hypothesis for it.

    ``get_current_profile_name`` is public in hypothesis 6.170 and missing in 6.131.
    """
    if "hypothesis" not in sys.modules:
        return "default"
    settings: Any = sys.modules["hypothesis"].settings
    public = getattr(settings, "get_current_profile_name", None)
    return str(public() if public is not None else settings._current_profile)


def hypothesis_settings(test: Any) -> Any:
    """The settings of a ``@given`` test, or None if it has none of its own.

    Seen in hypothesis 6.131 to 6.170.
    """
    return getattr(test, "_hypothesis_internal_use_settings", None)


def set_hypothesis_settings(test: Any, settings: Any) -> None:
    """Replace the settings of a ``@given`` test; ``settings`` as a decorator refuses a second one.

    Seen in hypothesis 6.131 to 6.170.
    """
    test._hypothesis_internal_use_settings = settings


def hypothesis_seed(test: Any) -> int | None:
    """The seed that ``@hypothesis.seed`` gave a test, or None.

    Seen in hypothesis 6.131 to 6.170.
    """
    return getattr(test, "_hypothesis_internal_use_seed", None)


# --- pytest ---------------------------------------------------------------------------------------


def terminal_width(reporter: Any) -> int:
    """The width of the terminal in columns, as pytest itself uses it.

    Seen in pytest 8.4 to 9.2.
    """
    return int(reporter._tw.fullwidth)


def fixture_is_overridden(metafunc: Any, name: str, module: str) -> bool:
    """Whether a test sees another fixture ``name`` than the one that ``module`` defines.

    Seen in pytest 8.4 to 9.2.
    """
    definitions = metafunc._arg2fixturedefs.get(name, ())
    return bool(definitions) and definitions[-1].func.__module__ != module
