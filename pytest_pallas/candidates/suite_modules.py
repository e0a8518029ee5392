"""Modules of a suite of tasks, traced in the sandbox: how inputs are made, and what is computed.

Neither a task nor a candidate is imported here. A driver beside it, in the sandbox, calls its
functions; what comes back are programs as data, which this process runs. See docs/judge.md.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pallas_sim.dtypes import is_float
from pytest_pallas.candidates.codec import ProgramData
from pytest_pallas.candidates.jail import SandboxLimits
from pytest_pallas.candidates.sandbox import Case, Failed, Sandbox
from pytest_pallas.candidates.source import CandidateSource, candidate_of
from pytest_pallas.draw.dtypes import as_dtype

#: A shape and the name of a dtype.
Shaped = tuple[tuple[int, ...], str]

#: Most bytes of the inputs that a task makes, before they are cut.
MOST_INPUTS = 4 << 30

_DRIVER_NAME = "jaxbench_driver.py"

#: The driver in the sandbox. ``seed`` is added to the seed of each key, so that a task makes other
#: inputs of the same distribution.
_DRIVER = """\
import jax
import jax.numpy as jnp

_made = {{name: getattr(jax.random, name) for name in ("key", "PRNGKey")}}
_added = [0]

def _with_seed(name):
    def make(seed, *args, **options):
        known = isinstance(seed, int) and seed < 1 << 30
        return _made[name](seed + _added[0] if known else seed, *args, **options)
    return make

for _name in _made:
    setattr(jax.random, _name, _with_seed(_name))

import {module} as module

if {needed!r}:
    getattr(module, {needed!r})

_config = getattr(module, "CONFIG", None)
_usual = dict(_config) if isinstance(_config, dict) else {{}}

def _configure(changes):
    if isinstance(_config, dict):
        _config.update(_usual)
        _config.update({{name: value for name, value in changes.items() if name in _usual}})

def create_inputs(seed, **config):
    _configure(config)
    create = module.create_inputs
    _added[0] = seed
    try:
        takes = "dtype" in create.__code__.co_varnames
        made = create(dtype=jnp.bfloat16) if takes else create()
    finally:
        _added[0] = 0
    return tuple(made) if isinstance(made, (list, tuple)) else (made,)

def workload(*inputs, **config):
    _configure(config)
    return module.workload(*inputs)
"""


@dataclass(frozen=True)
class SuiteSize:
    """A size of a task that can be changed.

    Attributes:
      size: what it is in the suite.
      name: the entry of ``CONFIG`` that inputs follow; "" of axes of this size that follow none.
    """

    size: int
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name}={self.size}" if self.name else str(self.size)


#: What sizes become.
Sizes = Mapping[SuiteSize, int]


@dataclass(frozen=True, kw_only=True)
class SuiteCall:
    """A call of a task, at the sizes of the suite or at smaller ones.

    Attributes:
      args: shape and dtype of each input.
      config: the entries of ``CONFIG`` that differ from those of the suite.
      sizes: what each changed size became.
      maker: the program that makes the inputs, of a seed; they are cut to ``args``.
    """

    args: tuple[Shaped, ...]
    config: Mapping[str, int]
    sizes: Sizes
    maker: ProgramData = field(repr=False)

    @property
    def case(self) -> Case:
        """The call as the sandbox takes it."""
        return Case(args=self.args, options=self.config)


def driven(path: Path, needed: str = "workload") -> CandidateSource:
    """Return the source of a module of a suite, with the driver that calls its functions.

    Args:
      path: the module.
      needed: the function that it must have.

    Raises:
      OptionError: there is no such file.
    """
    source = candidate_of(f"{path}:{needed}")
    name = source.module.removesuffix(".py").replace("/", ".")
    text = _DRIVER.format(module=name, needed=needed)
    files = {**source.files, _DRIVER_NAME: text}
    return replace(source, name=path.name, files=files, module=_DRIVER_NAME, package="")


def of_driver(line: str) -> bool:
    """Return whether ``file:line`` is one of the driver."""
    return line.startswith(f"{_DRIVER_NAME}:")


def config_of(text: str) -> dict[str, Any]:
    """Return the numbers and texts of a module's ``CONFIG``, without running it."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    for statement in body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
            if "CONFIG" in names:
                return dict(_entries(statement.value))
    return {}


def _entries(node: ast.Dict) -> list[tuple[str, Any]]:
    entries: list[tuple[str, Any]] = []
    for key, value in zip(node.keys, node.values, strict=True):
        try:
            name, entry = ast.literal_eval(key) if key else None, ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(name, str) and isinstance(entry, (bool, int, float, str)):
            entries.append((name, entry))
    return entries


class Workload:
    """The task of a suite, whose code runs in the sandbox only.

    Attributes:
      source: of its module.
      config: the entries of its ``CONFIG`` that are numbers and texts.
      sandbox: where it is traced.
      target: the chip that it is traced for.
    """

    def __init__(
        self, source: CandidateSource, config: Mapping[str, Any], sandbox: Sandbox, target: str
    ) -> None:
        self.source, self.config = source, config
        self.sandbox, self.target = sandbox, target

    @functools.cached_property
    def full(self) -> SuiteCall | Failed:
        """The call of the suite, or why there is none."""
        (made,) = self._made([{}])
        if isinstance(made, Failed):
            return made
        return SuiteCall(args=shaped(made), config={}, sizes={}, maker=made)

    @functools.cached_property
    def followed(self) -> Mapping[SuiteSize, frozenset[tuple[int, int]]]:
        """The sizes that can be changed, each with its axes: input and position."""
        assert isinstance(self.full, SuiteCall)
        named = [SuiteSize(n, name) for name, n in self.config.items() if type(n) is int and n > 1]
        made = self._made([{one.name: one.size // 2} for one in named])
        given = self.full.args
        axes: dict[SuiteSize, frozenset[tuple[int, int]]] = {}
        for one, program in zip(named, made, strict=True):
            if isinstance(program, ProgramData) and _alike(given, shaped(program)):
                changed = frozenset(_changed_axes(given, shaped(program)))
                if changed:
                    axes[one] = changed
        taken = frozenset[tuple[int, int]]().union(*axes.values())
        for number, (shape, _) in enumerate(given):
            for position, size in enumerate(shape):
                if size > 1 and (number, position) not in taken:
                    one = SuiteSize(size)
                    axes[one] = axes.get(one, frozenset()) | {(number, position)}
        return axes

    def calls(self, changes: Sequence[Sizes]) -> list[SuiteCall | Failed]:
        """Return the call for each set of changed sizes.

        The size of an entry of ``CONFIG`` is changed there. Axes that follow no entry are cut, and
        entries of the same number that no input follows are changed, too.
        """
        configs = [self._changed(sizes) for sizes in changes]
        calls: list[SuiteCall | Failed] = []
        for sizes, config, program in zip(changes, configs, self._made(configs), strict=True):
            if isinstance(program, Failed):
                calls.append(program)
                continue
            args = [(list(shape), dtype) for shape, dtype in shaped(program)]
            for one, size in sizes.items():
                for number, position in () if one.name else self.followed[one]:
                    args[number][0][position] = size
            cut = tuple((tuple(shape), dtype) for shape, dtype in args)
            calls.append(SuiteCall(args=cut, config=config, sizes=dict(sizes), maker=program))
        return calls

    def programs(self, calls: Sequence[SuiteCall]) -> list[ProgramData | Failed]:
        """Return what the task computes in each call."""
        cases = [call.case for call in calls]
        return trace(self.source, "workload", cases, self.sandbox, self.target)

    def in_float64(self, call: SuiteCall) -> ProgramData | None:
        """Return what the task computes of floats in float64; None if it refuses them.

        That is what is exact: the program of a call in bfloat16 rounds to bfloat16 in between,
        whatever it is given.
        """
        wide = tuple(
            (shape, "float64" if _is_float(dtype) else dtype) for shape, dtype in call.args
        )
        case = Case(args=wide, options=call.config)
        (program,) = trace(self.source, "workload", [case], self.sandbox, self.target)
        return program if isinstance(program, ProgramData) else None

    def _made(self, configs: Sequence[Mapping[str, int]]) -> list[ProgramData | Failed]:
        seed: Shaped = ((), "int32")
        cases = [Case(args=(seed,), options=config) for config in configs]
        return trace(self.source, "create_inputs", cases, self.sandbox, self.target)

    def _changed(self, sizes: Sizes) -> dict[str, int]:
        config: dict[str, int] = {}
        named = {one.name for one in self.followed}
        for one, size in sizes.items():
            if one.name:
                config[one.name] = size
                continue
            alike = (name for name, n in self.config.items() if type(n) is int and n == one.size)
            config |= dict.fromkeys((name for name in alike if name not in named), size)
        return config


def trace(
    source: CandidateSource, function: str, cases: Sequence[Case], sandbox: Sandbox, target: str
) -> list[ProgramData | Failed]:
    """Return the program of each call of a function of the driver, or why there is none."""
    if source.problem is not None:
        return [source.problem] * len(cases)
    traced = sandbox.trace(
        source.files,
        source.module,
        function,
        cases,
        target=target,
        folder=source.folder,
        limits=SandboxLimits(seconds=60.0, memory=4 << 30),
    )
    missing = traced.failed or Failed(stage="traces", name="no program", sentence="no program")
    return [
        traced.programs.get(number) or traced.refused.get(number, missing)
        for number in range(len(cases))
    ]


def shaped(program: ProgramData) -> tuple[Shaped, ...]:
    """Return shape and dtype of each result of a program."""
    return tuple((tuple(aval.shape), str(aval.dtype)) for aval in program.jaxpr.out_avals)


def _is_float(dtype: str) -> bool:
    return is_float(as_dtype(dtype))


def _alike(given: Sequence[Shaped], made: Sequence[Shaped]) -> bool:
    return [len(shape) for shape, _ in given] == [len(shape) for shape, _ in made]


def _changed_axes(given: Sequence[Shaped], made: Sequence[Shaped]) -> Iterator[tuple[int, int]]:
    for number, ((old, _), (new, _)) in enumerate(zip(given, made, strict=True)):
        for position, (before, after) in enumerate(zip(old, new, strict=True)):
            if before != after:
                yield number, position


def unusable(call: SuiteCall) -> str:
    """Return why the inputs of a call cannot be used; "" if they can."""
    import jax

    outputs = call.maker.outputs
    count = len(call.args)
    if outputs != jax.tree.structure(tuple(range(count))):
        return "an input is a container; only arrays and numbers are supported"
    for number, (_, dtype) in enumerate(call.args):
        try:
            kind = np.dtype(dtype).kind
        except TypeError:
            return f"input {number} has the dtype {dtype}, which is not supported"
        if kind not in "biufcV":
            return f"input {number} has the dtype {dtype}, which is not supported"
    size = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in shaped(call.maker))
    if size > MOST_INPUTS:
        return f"the inputs have {size >> 30} GiB; the limit is {MOST_INPUTS >> 30} GiB"
    return ""


def inputs_of(call: SuiteCall, seed: int = 0) -> tuple[Any, ...]:
    """Make the inputs of a call.

    Args:
      call: the call.
      seed: 0 for those of the suite; else others of the same distribution.
    """
    import jax

    made = jax.jit(call.maker)(np.int32(seed))
    return tuple(
        np.ascontiguousarray(np.asarray(value)[tuple(slice(size) for size in shape)]).reshape(shape)
        for value, (shape, _) in zip(made, call.args, strict=True)
    )


def varied(rng: np.random.Generator, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Replace inputs of floats that are all the same: they hide whether a kernel uses them.

    A zero becomes a number from -1/4 to 1/4, another number is multiplied by one from 3/4 to 5/4.
    """
    changed: list[Any] = []
    for value in inputs:
        floats = value.dtype.kind in "fV" and value.size > 0
        if floats and (value == value.flat[0]).all() and np.isfinite(value.flat[0].astype(float)):
            noise = rng.uniform(-0.25, 0.25, value.shape)
            first = float(value.flat[0])
            value = ((1 + noise) * first if first else noise).astype(value.dtype)
        changed.append(value)
    return tuple(changed)
