# ruff: noqa: T201
"""What stand-alone scripts ask of a program rather than of its answer; else as ``questions.py``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pytest_pallas.compat.jaxprs import written_inputs
from pytest_pallas.scripts.standalone.parts import ARRAYS, Case, KernelRaisedError, split
from pytest_pallas.scripts.standalone.questions import batched, differ, pullback


def immutability(case: Case) -> bool:
    """Look for writes to inputs: in the kernel's jaxpr, and in what the caller's arrays hold."""

    def kernels(jaxpr: Any) -> Any:
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "pallas_call":
                yield eqn.params
                continue
            for value in jax.tree.leaves(dict(eqn.params), is_leaf=lambda x: hasattr(x, "eqns")):
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    yield from kernels(inner)

    apply, before = split(case.kernel, case.args, case.options | case.tuning)
    arrays = [jnp.array(array) for array in before]
    failed = False
    try:
        with case.backend() as simulator:
            traced = jax.jit(apply).trace(*arrays)
            jax.block_until_ready(simulator(apply, arrays, {}) if simulator else apply(*arrays))
    except Exception as error:
        raise KernelRaisedError from error
    for params in kernels(traced.jaxpr.jaxpr):
        aliased = {int(pair[0]) for pair in params.get("input_output_aliases", ())}
        mapping = params["grid_mapping"]
        operands = range(mapping.num_index_operands + mapping.num_inputs)
        for position in sorted(written_inputs(params["jaxpr"])):
            if position in operands and position not in aliased:
                print(f"the kernel's body writes to the ref of its operand {position}")
                failed = True
    for number, (old, array) in enumerate(zip(before, arrays, strict=True)):
        name = f"input {number}"
        if array.is_deleted():
            print(f"{name} was deleted")
            failed = True
        elif differ({name: np.asarray(old)}, {name: np.asarray(array)}):
            failed = True
    return failed


def holds_a_kernel(case: Case) -> bool:
    """Look for a Pallas kernel in the program: True if there is none."""
    apply, arrays = split(case.kernel, case.args, case.options | case.tuning)
    with case.backend():
        traced = jax.jit(apply).trace(*map(jnp.array, arrays))
        where = case.more["look_in"]
        text = str(traced.jaxpr) if where == "jaxpr" else traced.lower().compile().as_text() or ""
    found = [name for name in case.more["names"] if name in text]
    print(f"of {', '.join(case.more['names'])} the {where} holds {', '.join(found) or 'none'}")
    return not found


def compiles(case: Case) -> bool:
    """Compile the program for a chip that is not there; True if it is refused."""
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    make = {
        "forward": lambda: (case.kernel, case.args),
        "gradient": lambda: (pullback(case.kernel, case.more["by"]), (None, *case.args)),
        "vmap": lambda: (
            batched(case.kernel, [True] * len(jax.tree.leaves(case.args))),
            jax.tree.map(
                lambda x: (
                    jax.ShapeDtypeStruct((2, *x.shape), x.dtype) if hasattr(x, "dtype") else x
                ),
                case.args,
            ),
        ),
    }
    function, args = make[case.more["program"]]()
    kinds = (*ARRAYS, jax.ShapeDtypeStruct)
    apply, arrays = split(function, args, case.options | case.tuning, kinds)
    platform = case.more["platform"]
    described, sharding = None, None
    try:
        if not case.more["topology"]:
            raise RuntimeError("none for a GPU that is not there")
        described = topologies.get_topology_desc(case.more["topology"], platform)
    except Exception as error:
        print(f"only lowered: no compiler here ({error})")
        if not case.more["lowering"]:
            raise
    else:
        count = case.more["devices"]
        mesh = Mesh(np.array(described.devices[:count]), ("devices",))
        sharding = NamedSharding(mesh, PartitionSpec())
    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding) for array in arrays]
    try:
        with case.backend():
            lowered = jax.jit(apply).trace(*shapes).lower(lowering_platforms=(platform,))
        if described is not None:
            lowered.compile()
    except Exception as error:
        raise KernelRaisedError from error
    print(f"{'lowered' if described is None else 'compiled'} for {case.more['target']}")
    return False
