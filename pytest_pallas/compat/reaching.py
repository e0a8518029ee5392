"""Private names of JAX: cores of one team, and how they reach those of another.

The TPU interpreter takes axes of the mesh of TensorCores in a ``device_id``, one at most, and
signals core 0 where none is named. On subcores, as JAX's lowering has it: what a semaphore or a
buffer belongs to decides whose cores are meant; an axis that is not named is one's own.

Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Sequence
from typing import Any

import jax

from pytest_pallas.compat.equations import Rule, Staged
from pytest_pallas.compat.teams import Team, Teams, with_fields


def reaching_rule(eqn: Any, ctx: Any) -> Rule | None:
    """The rule for a kernel of teams, or for an equation of one that reaches other cores."""
    name = eqn.primitive.name
    if name == "pytest_pallas_bodies":
        return _bodies
    if not hasattr(ctx, "team"):
        return None
    if name == "semaphore_signal":
        return _signal
    if name == "dma_start" and _told(eqn, "tree")[4] is not None:
        return _copy
    return None


def _bodies(staged: Staged, values: Sequence[Any], token: Any) -> Any:
    """Each core runs the body of its team; axes of its mesh are those of the grid."""
    teams: Teams = staged.eqn.params["teams"]

    def body(team: Team, jaxpr: Any) -> Any:
        def run(token: Any, *values: Any) -> Any:
            ctx, environment = _in_team(staged.ctx, team, teams)
            with environment:
                return staged.module._interpret_jaxpr(jaxpr, *values, ctx=ctx, token=token)[0]

        return run

    bodies = [body(*each) for each in zip(teams.all, staged.eqn.params["jaxprs"], strict=True)]
    core = staged.ctx.local_core_id
    which = sum((core >= team.first).astype("int32") for team in teams.all[1:])
    return jax.lax.switch(which, bodies, token, *values), []


def _in_team(ctx: Any, team: Team, teams: Teams) -> tuple[Any, Any]:
    """The context of a core of a team, and where ``pl.program_id`` is read."""
    pallas: Any = importlib.import_module("jax._src.pallas.core")
    sizes = team.shape
    point = tuple(team.position(ctx.local_core_id, name) for name in sizes)
    grid = dataclasses.replace(
        ctx.grid_mapping, grid=tuple(sizes.values()), grid_names=tuple(sizes)
    )
    axes = tuple(pallas.GridAxis(*each) for each in zip(point, sizes.values(), strict=True))
    context = with_fields(ctx.replace(grid_mapping=grid, grid_point=point), team=team, teams=teams)
    return context, pallas.grid_env(axes)


def _signal(staged: Staged, values: Sequence[Any], token: Any) -> Any:
    module, ctx, params = staged.module, staged.ctx, staged.eqn.params
    semaphore, transforms, amount, device_id, core_index = jax.tree.unflatten(
        params["args_tree"], list(values)
    )
    team = _owner(staged, _told(staged.eqn, "args_tree")[0])
    device, core = _reached(staged, team, device_id)
    if core_index is not None:
        core = team.first + core_index
    discharge: Any = importlib.import_module("jax._src.state.discharge")
    token = module.callback.io_callback(
        functools.partial(module.semaphore_signal, source_info=staged.eqn.source_info),
        module.TOKEN_SHAPE_DTYPE,
        token,
        ctx.device_id,
        ctx.local_core_id,
        discharge.transform_array(semaphore, transforms),
        amount,
        device,
        core,
    )
    return token, []


def _copy(staged: Staged, values: Sequence[Any], token: Any) -> Any:
    module, ctx, params = staged.module, staged.ctx, staged.eqn.params
    primitives: Any = importlib.import_module("jax._src.pallas.mosaic.primitives")
    discharge: Any = importlib.import_module("jax._src.state.discharge")
    source, target, *semaphores, device_id = jax.tree.unflatten(params["tree"], list(values))
    told = _told(staged.eqn, "tree")
    team = _owner(staged, told[1])
    device, core = _reached(staged, team, device_id)
    cores = []
    if "dst_local_core_id" in inspect.signature(module.dma_start).parameters:
        cores = [core]
    elif team != ctx.team or _core_axes(team, device_id):
        raise NotImplementedError(
            "a copy to another core: JAX before 0.12 has that for other devices only"
        )

    def end(told: Any, given: Any) -> tuple[Any, Any, Any]:
        aval = getattr(told, "ref", told)
        space = module._forward_any_to_hbm(getattr(aval, "memory_space", None)) or module._HBM
        return (module.TPU_MEMORY_SPACE_IDXS[space], *primitives._get_ref_and_transforms(given))

    token = module.callback.io_callback(
        functools.partial(module.dma_start, source_info=staged.eqn.source_info),
        module.TOKEN_SHAPE_DTYPE,
        token,
        ctx.device_id,
        ctx.local_core_id,
        *end(told[0], source),
        *end(told[1], target),
        *(
            None
            if each is None
            else discharge.transform_array(*primitives._get_ref_and_transforms(each))
            for each in semaphores
        ),
        device,
        *cores,
    )
    return token, []


def _told(eqn: Any, tree: str) -> Any:
    """What is known of an equation's operands before it runs, as its caller gave them."""
    avals = [getattr(atom, "aval", None) for atom in eqn.invars]
    return jax.tree.unflatten(eqn.params[tree], avals)


def _owner(staged: Staged, told: Any) -> Team:
    """The team whose cores have a buffer or a semaphore."""
    ctx = staged.ctx
    space = getattr(getattr(told, "ref", told), "memory_space", None)
    return ctx.teams.of(getattr(space, "mesh", None)) or ctx.team


def _core_axes(team: Team, device_id: Any) -> dict[str, Any]:
    """The part of a ``device_id`` that says which core."""
    if not isinstance(device_id, dict):
        return {}
    return {name: value for name, value in device_id.items() if name in team.shape}


def _reached(staged: Staged, team: Team, device_id: Any) -> tuple[Any, Any]:
    """The device, or None for one's own, and the core."""
    ctx = staged.ctx
    named = _core_axes(team, device_id)
    device = None
    if isinstance(device_id, dict):
        device_id = {name: value for name, value in device_id.items() if name not in named}
    if device_id is not None and device_id != {}:
        utils: Any = importlib.import_module("jax._src.pallas.mosaic.interpret.utils")
        found = utils._device_id_to_logical(
            device_id, staged.eqn.params["device_id_type"], ctx.axis_sizes, ctx.axis_indices
        )
        device = found[0] if isinstance(found, tuple) else found
    if team == ctx.team and not named:
        return device, ctx.local_core_id
    positions = dict(zip(ctx.team.shape, ctx.grid_point, strict=True)) | named
    missing = [name for name in team.shape if name not in positions]
    if missing:
        raise ValueError(
            f"device_id must say which {' and '.join(missing)} is meant: the cores of "
            f"{ctx.team.mesh} have no such axis"
        )
    return device, team.core({name: positions[name] for name in team.shape})
