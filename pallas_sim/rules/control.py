"""Rules: branches, loops, scopes with memory of their own, and calls.

Calls are those of other jaxprs and of Python on the host; what a kernel asserts and prints is among
them. ``in_lanes`` makes a program for arrays of a computation that JAX traced for one element.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from pallas_sim.accesses import allocate, free
from pallas_sim.compat.jaxprs import argument_names, open_jaxpr, scan_parts, space_of
from pallas_sim.eager import bind
from pallas_sim.errors import SimulationError
from pallas_sim.evaluation import CALLS, Program, called, prepare, prepare_lifted, run
from pallas_sim.generators import raw_value, value_of
from pallas_sim.machine import Thread
from pallas_sim.memory import KeyArray, Ref, locate, to_jax
from pallas_sim.points import Site, branch_site, loop_site
from pallas_sim.registry import Equation, Evaluate, rule


@rule("cond", threaded=True)
def _cond(eqn: Equation) -> Evaluate:
    branches = [prepare(branch) for branch in eqn.params["branches"]]
    last = len(branches) - 1
    # Where a `pl.when` does not hold: half of all that kernels ask.
    idle = [not (branch.steps or branch.outputs) for branch in branches]
    site = branch_site(eqn)

    def evaluate(thread: Thread, index: Any, *args: Any) -> Any:
        chosen = max(0, min(int(index), last))
        if site is not None and thread.kernels:
            thread.machine.coverage.count(site, thread.kernels[-1], chosen)
        return () if idle[chosen] else run(branches[chosen], thread, args, passes_on=True)

    return evaluate


@rule("while", threaded=True)
def _while(eqn: Equation) -> Evaluate:
    condition, body = prepare(eqn.params["cond_jaxpr"]), prepare(eqn.params["body_jaxpr"])
    first, second = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    site = loop_site(eqn)

    @functools.cache
    def live() -> Sequence[int]:
        """Return which parts of its state the body uses: a new round forgets the others."""
        inner = open_jaxpr(eqn.params["body_jaxpr"])[0]
        used = {id(var) for one in inner.eqns for var in one.invars} | set(map(id, inner.outvars))
        return [at for at, var in enumerate(inner.invars[second:]) if id(var) in used]

    def evaluate(thread: Thread, *args: Any) -> Any:
        rounds = 0
        of_condition, of_body = args[:first], args[first : first + second]
        carry = list(args[first + second :])
        choices, mark = thread.machine.choices, None

        def state() -> Hashable:
            # Of several loops in one, those that have ended keep all of theirs.
            parts = range(len(carry)) if np.ndim(going) else live()
            return tuple(np.asarray(raw_value(carry[at])).tobytes() for at in parts)

        while np.any(going := run(condition, thread, (*of_condition, *carry))[0]):
            if choices.explores:
                mark = choices.enter_round(thread, mark, state)
            thread.machine.count(1)  # an empty loop has no equations to count
            rounds += 1
            after = run(body, thread, (*of_body, *carry))
            carry = after if np.ndim(going) == 0 else _advanced(going, after, carry)
        count_rounds(site, thread, rounds)
        return carry

    return evaluate


def count_rounds(site: Site | None, thread: Thread, rounds: int) -> None:
    """Count a loop that went round so often inside of a kernel."""
    if site is not None and thread.kernels:
        thread.machine.coverage.count(site, thread.kernels[-1], min(rounds, 2))


def _advanced(going: Any, after: list[Any], before: list[Any]) -> list[Any]:
    """Return the state of a loop that ``vmap`` made of several; ended ones keep theirs."""

    def chosen(new: Any, old: Any) -> Any:
        if isinstance(new, KeyArray):
            return KeyArray(chosen(new.data, old.data), new.dtype)
        return np.where(going.reshape(going.shape + (1,) * (np.ndim(new) - going.ndim)), new, old)

    return list(map(chosen, after, before))


@rule("scan", threaded=True)
def _scan(eqn: Equation) -> Evaluate:
    body = prepare(eqn.params["jaxpr"])
    length = int(eqn.params["length"])
    consts, carried, _ = scan_parts(eqn.params, len(eqn.ins))
    order = range(length - 1, -1, -1) if eqn.params["reverse"] else range(length)
    stacked = eqn.outs[carried:]
    site = loop_site(eqn)

    def evaluate(thread: Thread, *args: Any) -> Any:
        count_rounds(site, thread, length)
        constant, carry = args[:consts], list(args[consts : consts + carried])
        scanned = args[consts + carried :]
        if not stacked:
            for number in order:
                thread.machine.count(1)
                carry = run(body, thread, (*constant, *carry, *[_at(x, number) for x in scanned]))
            return carry
        results: list[list[Any]] = [[None] * length for _ in stacked]
        for number in order:
            after = run(body, thread, (*constant, *carry, *[_at(x, number) for x in scanned]))
            carry = after[:carried]
            for rows, value in zip(results, after[carried:], strict=True):
                rows[number] = value
        return [*carry, *map(_stacked, results, stacked)]

    return evaluate


def _at(array: Any, number: int) -> Any:
    return (
        KeyArray(array.data[number], array.dtype) if isinstance(array, KeyArray) else array[number]
    )


def _stacked(rows: list[Any], aval: Any) -> Any:
    """Return the results of all steps as one array."""
    if rows and isinstance(rows[0], KeyArray):
        return KeyArray(np.stack([row.data for row in rows]), rows[0].dtype)
    array = np.empty(aval.shape, aval.dtype)
    for number, row in enumerate(rows):
        array[number] = row
    return array


@rule("run_scoped", threaded=True)
def _run_scoped(eqn: Equation) -> Evaluate:
    jaxpr = eqn.params["jaxpr"]
    program = prepare_lifted(jaxpr, eqn.line)
    memory = _variables(jaxpr, "scoped memory")

    @functools.cache
    def scope_on_gpu() -> Any:
        from pallas_sim.gpu import scopes

        return functools.partial(scopes.run_scope, scope=scopes.scope_of(eqn))

    def evaluate(thread: Thread, *captured: Any) -> Any:
        if thread.is_warpgroup:
            return scope_on_gpu()(
                thread, work=lambda refs: run(program, thread, (*captured, *refs))
            )
        refs = [
            allocate(thread, aval, name, id(eqn), number)
            for number, (aval, name) in enumerate(memory)
        ]
        locate(refs, eqn.line)
        results = run(program, thread, (*captured, *refs))
        free(thread, refs, eqn.line)
        return results

    return evaluate


def _variables(jaxpr: Any, kind: str) -> list[tuple[Any, str]]:
    """Return the avals and the names of the references that a jaxpr takes."""
    inner, _ = open_jaxpr(jaxpr)
    named = zip(inner.invars, argument_names(inner), strict=True)
    return [(var.aval, name or f"{kind} {number}") for number, (var, name) in enumerate(named)]


@rule("run_state", threaded=True)
def _run_state(eqn: Equation) -> Evaluate:
    jaxpr = eqn.params["jaxpr"]
    program = prepare(jaxpr)
    flags, memory = eqn.params["is_initialized"], _variables(jaxpr, "state")

    def evaluate(thread: Thread, *args: Any) -> Any:
        values = iter(args)
        refs = [
            initialized(next(values), aval, name)
            if first
            else allocate(thread, aval, name, id(eqn), n)
            for n, ((aval, name), first) in enumerate(zip(memory, flags, strict=True))
        ]
        run(program, thread, refs)
        if thread.is_warpgroup:  # JAX's lowering waits for all ``wgmma``, too
            from pallas_sim.gpu.engines import wait_groups

            gpu: Any = thread
            wait_groups(gpu, gpu.products, 0)
        return [value_of(ref.data, aval) for ref, (aval, _) in zip(refs, memory, strict=True)]

    return evaluate


@rule("new_ref")
def _new_ref(eqn: Equation) -> Evaluate:
    return lambda value: initialized(value, eqn.out, "")


@rule("empty_ref", threaded=True)
def _empty_ref(eqn: Equation) -> Evaluate:
    return lambda thread: allocate(thread, eqn.out, "", id(eqn))


@rule("freeze")
def _freeze(eqn: Equation) -> Evaluate:
    return lambda ref: value_of(ref.data, eqn.out)


def initialized(value: Any, aval: Any, name: str) -> Ref:
    """Return memory that holds a value, or the memory itself that is given."""
    if isinstance(value, Ref):
        return value
    return Ref(np.array(raw_value(value)), name, space_of(aval))


# Calls of other programs and of Python, what a kernel asserts, and what it prints.


@rule(*CALLS, threaded=True)
def _call(eqn: Equation) -> Evaluate:
    program = prepare(called(eqn.params))
    return lambda thread, *args: run(program, thread, args, passes_on=True)


#: Names of values, promises about them, and where they are: all the same to a simulated device.
_PASSED = (
    *("layout_constraint", "sharding_constraint", "with_memory_space_constraint", "reshard"),
    *("relayout", "random_clone"),
    *("stop_gradient", "copy", "copy_p", "multiple_of", "name", "stage", "xla_metadata_value"),
    *("pvary", "reduced_vary_cast", "vary_unreduced_cast", "preduced"),
    *("layout_cast", "max_contiguous"),
)


@rule(*_PASSED)
def _same(eqn: Equation) -> Evaluate:
    return lambda value, *_: value


@rule("optimization_barrier", "device_put")
def _barrier(eqn: Equation) -> Evaluate:
    return lambda *values: values


@rule("tie")
def _tie(eqn: Equation) -> Evaluate:
    return lambda before, value: value


@rule(
    *("dce_sink", "add_dependency", "trace_value", "free_ref", "delay"),
    *("print_layout", "debug_barrier", "debug_barrier_p"),
)
def _nothing(eqn: Equation) -> Evaluate:
    """Keep values from being optimized away, order operations, free memory, or take time.

    ``trace_value`` is for a profiler. ``debug_barrier`` is ``bar.sync``, of the threads of one
    program, which run as one here.
    """
    return lambda *_: ()


@rule("custom_fusion", threaded=True)
def _custom_fusion(eqn: Equation) -> Evaluate:
    """A function that may have another implementation inside of kernels."""
    params = eqn.params
    first, second = params["num_consts"], params["num_consts"] + params["pallas_num_consts"]
    program = prepare_lifted(params["jaxpr"])
    own = params["pallas_jaxpr"]
    inside = None if own is None else prepare_lifted(own)

    def evaluate(thread: Thread, *values: Any) -> Any:
        args = values[second:]
        if inside is not None and thread.kernels:
            return run(inside, thread, (*values[first:second], *args))
        return run(program, thread, (*values[:first], *args))

    return evaluate


#: What JAX calls the platforms of the simulated chips in ``lax.platform_dependent``.
_PLATFORMS = {"tpu": "tpu", "gpu": "cuda"}


@rule("platform_index", threaded=True)
def _platform_index(eqn: Equation) -> Evaluate:
    """Which branch of ``lax.platform_dependent`` is for the machine; else that for the host."""
    platforms = eqn.params["platforms"]

    def evaluate(thread: Thread) -> Any:
        platform = thread.machine.platform
        for name in (_PLATFORMS[platform], None, "cpu"):
            for number, names in enumerate(platforms):
                if name in (names or (None,)):
                    return np.int32(number)
        raise SimulationError(
            f"lax.platform_dependent has no branch for a {platform.upper()}, only {platforms}"
        )

    return evaluate


@rule("pure_callback", "io_callback")
def _callback(eqn: Equation) -> Evaluate:
    """Python on the host, which gets arrays of JAX."""
    callback = eqn.params["callback"]

    def evaluate(*values: Any) -> Any:
        import jax
        from jax.core import eval_context

        with jax.default_device(jax.local_devices(backend="cpu")[0]), eval_context():
            results = callback(*(jax.device_put(to_jax(value)) for value in values))
        arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(results)]
        declared = [(out.shape, out.dtype) for out in eqn.outs]
        if [(array.shape, array.dtype) for array in arrays] != declared:
            returned = ", ".join(f"{array.dtype}{list(array.shape)}" for array in arrays)
            expected = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in declared)
            raise SimulationError(
                f"a callback returns {returned or 'nothing'} instead of {expected}"
            )
        return arrays

    return evaluate


@rule("check", threaded=True)
def _check(eqn: Equation) -> Evaluate:
    """``pl.debug_check`` and ``checkify.check``: what does not hold is a finding."""

    def evaluate(thread: Thread, *values: Any) -> Any:
        import jax

        message = jax.tree.unflatten(eqn.params["err_tree"], values).get()
        if message is not None:
            message = f"an assertion of the kernel fails: {message}"
            thread.report("assertion", message, eqn.line)
        return ()

    return evaluate


@rule("debug_print", "debug_callback")
def _debug(eqn: Equation) -> Evaluate:
    """JAX prints, or calls the function that it was given."""

    def evaluate(*values: Any) -> Any:
        arrays = [value.data if isinstance(value, Ref) else np.asarray(value) for value in values]
        from jax.core import eval_context

        with eval_context():
            return bind(eqn.origin, arrays)

    return evaluate


def in_lanes(jaxpr: Any, shape: Sequence[int]) -> Program:
    """Return a program that does for each element of arrays what a jaxpr does for scalars.

    Args:
      jaxpr: open or closed, with scalar inputs and outputs: the computation of a reduction, say.
      shape: of the arrays that the program takes and gives.
    """
    import jax
    from jax.core import eval_jaxpr

    inner, consts = open_jaxpr(jaxpr)

    def one(*values: Any) -> list[Any]:
        return eval_jaxpr(inner, consts, *values)

    many = one
    for _ in shape:
        many = jax.vmap(many)
    # The dtypes are those of the jaxpr, whatever the setting is now.
    with jax.enable_x64(True):
        taken = [jax.ShapeDtypeStruct(tuple(shape), var.aval.dtype) for var in inner.invars]
        return prepare(jax.make_jaxpr(many)(*taken))
