"""Private names of JAX: what the TPU interpreter does while it runs a kernel, told to a watch.

The interpreter stages every operation of a kernel (a DMA, a signal, a wait, an allocation) as a
call of ``io_callback`` with a function of its module. ``watchable`` puts itself between the two, so
that the functions tell who runs them, and where in the kernel that is written.

Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from pytest_pallas.compat.bounds_named import bounds_named
from pytest_pallas.compat.jaxprs import sub_jaxprs
from pytest_pallas.compat.simulated import Memory, Operation, Watch

_MODULE = "jax._src.pallas.mosaic.interpret.interpret_pallas_call"
_PRIMITIVES = frozenset({"dma_start", "dma_wait", "semaphore_signal", "semaphore_wait"})

#: The functions that a watch is told of.
_TOLD = frozenset({*_PRIMITIVES, "_barrier", "_clean_up_shared_memory"})

#: Those that are needed to tell names, besides.
_HOOKED = _TOLD | {
    "get",
    "store",
    "swap",
    "dma_add",
    "_allocate_buffer",
    "_allocate_semaphores",
}


@dataclass(frozen=True)
class Placed:
    """A source position as the interpreter takes it, with the grid point and the core."""

    info: Any
    place: str
    point: tuple[int, ...] = ()
    device: int = 0
    core: int = 0

    @property
    def traceback(self) -> Any:
        """JAX's own."""
        return getattr(self.info, "traceback", None)

    @property
    def name_stack(self) -> Any:
        """JAX's own."""
        return getattr(self.info, "name_stack", None)


class Frame(str):
    """A source position as the race detector writes and keeps it, with what is known of it."""

    placed: Placed

    def __new__(cls, placed: Placed) -> Frame:
        """The line, where it is known."""
        self = super().__new__(cls, placed.place)
        self.placed = placed
        return self


@dataclass
class _Kernel:
    """The kernel that is being staged: its body, and the names in the order of allocation."""

    name: str
    jaxpr: Any
    buffers: list[str]
    semaphores: list[str]
    pointed: bool


class _State(threading.local):
    """Which kernel this thread stages, and which of its lines."""

    kernel: _Kernel | None = None
    #: Of the innermost equation around the present ones whose line is known.
    place: str = ""


_staged = _State()
_watching: list[Watch] = []
_memories: dict[int, Memory] = {}
_lock = threading.Lock()


@contextmanager
def watched(watch: Watch) -> Generator[None]:
    """Tell ``watch`` of what the TPU interpreter runs inside; it must be watchable."""
    _watching.append(watch)
    try:
        yield
    finally:
        _watching.remove(watch)


@contextmanager
def watchable() -> Generator[None]:
    """Let the TPU interpreter tell a watch what it does."""
    module: Any = importlib.import_module(_MODULE)
    races: Any = importlib.import_module("jax._src.pallas.mosaic.interpret.race_detection_state")
    callbacks, info = module.callback, races.source_info_util
    with ExitStack() as stack:
        for owner, name, value in (
            (module, "callback", _Callbacks(callbacks, module)),
            (module, "interpret_pallas_call", _staging(module.interpret_pallas_call)),
            (module, "_interpret_jaxpr", _pointing(module)),
            (module, "_clear_shared_memory", _closing(module)),
            (module, "_validate", _quietly(module)),
            (module, "thread_map", _ending(module)),
            (races, "source_info_util", _Sources(info)),
        ):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


@contextmanager
def oldest_dma_first() -> Generator[None]:
    """Let a wait execute the oldest of the DMAs that could signal it, and not the youngest."""
    module: Any = importlib.import_module("jax._src.pallas.mosaic.interpret.shared_memory")
    made = module.Semaphore.__init__

    def first_in(self: Any, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        self.tasks = [_Queue() for _ in self.tasks]

    module.Semaphore.__init__ = first_in
    try:
        yield
    finally:
        module.Semaphore.__init__ = made


class _Queue(list[Any]):
    """A list that gives its first element."""

    def pop(self, index: Any = 0) -> Any:
        return super().pop(index)


class _Callbacks:
    """``jax._src.callback`` for the interpreter."""

    def __init__(self, module: Any, interpreter: Any) -> None:
        self._module, self._interpreter = module, interpreter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def io_callback(self, function: Any, shapes: Any, *args: Any, **options: Any) -> Any:
        name = getattr(getattr(function, "func", function), "__name__", "")
        kernel = _staged.kernel
        if name == "_initialize_shared_memory" and kernel is not None:
            function = functools.partial(_opened, self._interpreter, function, kernel.name)
        elif name in _HOOKED:
            info = importlib.import_module("jax._src.source_info_util")
            given = getattr(function, "keywords", {}).get("source_info")
            given = given or info.current()
            # Told now, because finding the user's frame takes longer than most operations.
            alone = name in ("_barrier", "_clean_up_shared_memory")
            # Inside of what JAX composes, such as sync_copy, no frame is the user's.
            placed = Placed(given, "" if alone else info.summarize(given) or _staged.place)
            wanted = ""
            if kernel is not None and name == "_allocate_buffer" and kernel.buffers:
                wanted = kernel.buffers.pop(0)
            if kernel is not None and name == "_allocate_semaphores" and kernel.semaphores:
                wanted = kernel.semaphores.pop(0)
            function = functools.partial(_hooked, self._interpreter, name, function, placed, wanted)
        return self._module.io_callback(function, shapes, *args, **options)


class _Sources:
    """``source_info_util`` for the race detector: its books keep the grid point and core, too."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def summarize(self, info: Any) -> str:
        if not isinstance(info, Placed):
            return self._module.summarize(info)
        return Frame(info)


def _opened(module: Any, function: Any, kernel: str, *args: Any) -> Any:
    """``_initialize_shared_memory``, which every device calls and the first of them executes."""
    result = function(*args)
    with _lock:
        known = _memories.get(id(module._shared_memory))
        if known is None or known.shared is not module._shared_memory:
            _memories.clear()  # of a kernel that failed: there is one at a time
            _memories[id(module._shared_memory)] = Memory(module._shared_memory, kernel)
            for watch in _watching:
                module._shared_memory.detect_races = watch.races
                module._shared_memory.dma_execution_mode = watch.dma
    return result


def running_memory() -> Memory | None:
    """The memory of the kernel that the TPU interpreter runs, if it runs one."""
    with _lock:
        return next(iter(_memories.values()), None)


def _memory(module: Any) -> Memory:
    with _lock:
        shared = module._shared_memory
        return _memories.setdefault(id(shared), Memory(shared))


def _hooked(module: Any, name: str, function: Any, placed: Placed, wanted: str, *args: Any) -> Any:
    memory = _memory(module)
    if name in ("_allocate_buffer", "_allocate_semaphores"):
        return _named(memory, module, name, function, placed, wanted, args)
    device = int(args[1])
    core = 0 if name in ("_barrier", "_clean_up_shared_memory") else int(args[2])
    place = placed.place
    point = memory.points.get((device, core), ())
    keywords = getattr(function, "keywords", {})
    if "source_info" in keywords:
        known = {**keywords, "source_info": Placed(placed.info, place, point, device, core)}
        function = functools.partial(function.func, *function.args, **known)
    if name in ("get", "store", "swap"):
        with bounds_named(memory.buffers, place, point):
            return _accessed(memory, module, name, function, (device, core), args)
    operation = _operation(memory, name, device, core, place, point, args)
    for watch in list(_watching):
        watch.begins(memory, operation)
    # The race detector fails at a wait for nothing, if nobody has signalled yet.
    nothing = name == "semaphore_wait" and operation.amount == 0
    with bounds_named(memory.buffers, place, point):
        result = args[0] if nothing else _reaching(module, memory, operation, function)(*args)
    for watch in list(_watching):
        watch.ends(memory, operation)
    if name == "_barrier":
        memory.entered = True
    return result


def _reaching(module: Any, memory: Memory, operation: Operation, function: Any) -> Any:
    """The function, or what fails in its place if it reaches for a device that is not there.

    The interpreter takes -1 for the last device: a ring without its modulus is right in it alone.
    """
    devices = memory.shared.num_devices
    reached = operation.device if operation.target is None else operation.target[0]
    if 0 <= reached < devices:
        return function

    def fail(*_: Any) -> None:
        raise IndexError(
            f"{operation.name} at {operation.place}: there is no device {reached}, but "
            f"0 to {devices - 1}"
        )

    return module.fail_on_exception(fail)


def _operation(
    memory: Memory,
    name: str,
    device: int,
    core: int,
    place: str,
    point: tuple[int, ...],
    args: Sequence[Any],
) -> Operation:
    semaphore = sends = amount = target = None
    if name == "dma_start":
        semaphore = int(args[9])
        sends = None if args[10] is None else int(args[10])
        reached = args[11] if len(args) > 11 else None
        other = args[12] if len(args) > 12 else None
        if reached is not None:
            target = (int(reached), core if other is None else int(other))
    elif name in _PRIMITIVES:
        semaphore, amount = int(args[3]), int(args[4])
    if name == "semaphore_signal" and args[5] is not None:
        target = (int(args[5]), 0 if args[6] is None else int(args[6]))
    return Operation(name, device, core, place, point, semaphore, sends, amount, target)


def _named(
    memory: Memory,
    module: Any,
    name: str,
    function: Any,
    placed: Placed,
    wanted: str,
    args: Sequence[Any],
) -> Any:
    """An allocation, whose result gets the name that the kernel has for it."""
    token, numbers = function(*args)
    if name == "_allocate_semaphores":
        wanted = wanted or f"made at {placed.place}"
        count = getattr(numbers, "size", 1)
        for place, number in enumerate(numbers.ravel()):
            memory.semaphores[int(number)] = wanted if count == 1 else f"{wanted}[{place}]"
    else:
        space = module.TPU_MEMORY_SPACE_NAMES[int(args[3])]
        wanted = wanted or f"a buffer made at {placed.place}"
        memory.buffers[space, int(numbers)] = wanted
    return token, numbers


def _accessed(
    memory: Memory,
    module: Any,
    name: str,
    function: Any,
    thread: tuple[int, int],
    args: Sequence[Any],
) -> Any:
    """A read or write; a block of an output that goes to HBM is forgotten where it was."""
    result = function(*args)
    keywords = getattr(function, "keywords", {})
    space = module.TPU_MEMORY_SPACE_NAMES[int(args[3])]
    if name == "get" and not keywords and space not in ("any", "hbm"):
        memory.shown[thread] = (space, int(args[4]), *thread)
    elif name == "store" and keywords.get("output_name") is not None:
        key = memory.shown.pop(thread, None)
        if key is not None and any(watch.forgets for watch in _watching):
            _forget(module, memory.shared, key)
    return result


def _forget(module: Any, shared: Any, key: Any) -> None:
    content = shared.mem[key].content
    content[...] = module.interpret_utils.get_uninitialized_value(
        content.dtype, shared.uninitialized_memory
    )


def _staging(interpret: Callable[..., Any]) -> Callable[..., Any]:
    """``interpret_pallas_call`` with its kernel known to the callbacks that it stages."""

    def staged(*args: Any, **params: Any) -> Any:
        before = _staged.kernel
        _staged.kernel = _kernel(params)
        try:
            return interpret(*args, **params)
        finally:
            _staged.kernel = before

    return staged


def _kernel(params: Any) -> _Kernel:
    jaxpr, mapping = params["jaxpr"], params["grid_mapping"]
    names = [str(name) for name in jaxpr.debug_info.arg_names or ()]
    names += ["a ref without a name"] * (len(jaxpr.invars) - len(names))
    scalars, inputs, outputs = (
        mapping.num_index_operands,
        mapping.num_inputs,
        mapping.num_outputs,
    )
    aliased = {output for _, output in params["input_output_aliases"]}
    blocked = names[scalars:]
    buffers = [f"{name} (HBM)" for name in blocked[:inputs]]
    buffers += [
        f"{name} (HBM)" for i, name in enumerate(blocked[inputs:][:outputs]) if i not in aliased
    ]
    buffers += names[:scalars]
    semaphores: list[str] = []
    for place, (name, var) in enumerate(zip(blocked, jaxpr.invars[scalars:], strict=False)):
        aval = var.aval
        if place < inputs + outputs:
            aval = mapping.block_mappings[place].transformed_block_aval
        space = str(aval.memory_space)
        if "semaphore" in space:
            semaphores.append(name)
        elif space not in ("any", "hbm"):
            buffers.append(name)
    return _Kernel(
        name=str(params.get("name") or jaxpr.debug_info.func_name),
        jaxpr=jaxpr,
        buffers=buffers,
        semaphores=semaphores,
        pointed=bool(mapping.grid) and any(name in _PRIMITIVES for name in _primitives(jaxpr)),
    )


def _primitives(jaxpr: Any) -> Iterator[str]:
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for inner in sub_jaxprs(eqn):
            yield from _primitives(inner)


def _pointing(module: Any) -> Callable[..., Any]:
    """``_interpret_jaxpr`` that tells the grid point before each run of a kernel's body."""
    interpret = module._interpret_jaxpr
    sources: Any = importlib.import_module("jax._src.source_info_util")

    def pointed(jaxpr: Any, *args: Any, ctx: Any, token: Any) -> Any:
        kernel = _staged.kernel
        if (
            kernel is not None
            and kernel.pointed
            and jaxpr is kernel.jaxpr
            and ctx.grid_point is not None
        ):
            token = module.callback.io_callback(
                functools.partial(_told_point, module),
                module.TOKEN_SHAPE_DTYPE,
                token,
                ctx.device_id,
                ctx.local_core_id,
                ctx.grid_point,
            )
        outer = _staged.place
        _staged.place = sources.summarize(sources.current()) or outer
        try:
            return interpret(jaxpr, *args, ctx=ctx, token=token)
        finally:
            _staged.place = outer

    return pointed


def _told_point(module: Any, token: Any, device: Any, core: Any, point: Any) -> Any:
    _memory(module).points[int(device), int(core)] = tuple(int(x) for x in point)
    return token


def _closing(module: Any) -> Callable[[], None]:
    """``_clear_shared_memory``, which runs once when every device is at the end."""
    clear = module._clear_shared_memory

    def closed() -> None:
        memory = _memory(module)
        if memory.shared._failure is None:
            for watch in list(_watching):
                watch.closes(memory)
        with _lock:
            _memories.clear()
        clear()

    return closed


def _ending(module: Any) -> Callable[..., Any]:
    """``thread_map``, which runs a core in each thread, with a word from each core at its end."""
    run = module.thread_map

    def told(core: Any, token: Any, *args: Any, body: Any, device: Any) -> Any:
        return module.callback.io_callback(
            functools.partial(_core_ended, module),
            module.TOKEN_SHAPE_DTYPE,
            body(core, token, *args),
            device,
            core,
        )

    def each(body: Any, count: Any, token: Any, *args: Any, device_id: Any, **options: Any) -> Any:
        told_of = functools.partial(told, body=body, device=device_id)
        return run(told_of, count, token, *args, device_id=device_id, **options)

    return each


def _core_ended(module: Any, token: Any, device: Any, core: Any) -> Any:
    memory = _memory(module)
    for watch in list(_watching):
        watch.begins(memory, Operation("_core_ended", int(device), int(core)))
    return token


def _quietly(module: Any) -> Callable[..., Any]:
    """``_validate``, which prints a semaphore that is not zero: not where a watch tells of it."""
    validate = module._validate

    def quiet(token: Any, device_id: Any) -> Any:
        return token if _watching else validate(token, device_id)

    return quiet
