"""Write the script that repeats a failure by ``pytest_pallas.check``, without a pytest session.

The script imports the kernel and its reference, writes down arguments that can be read, loads the
other arrays from the ``.npz`` file beside it (``replay.saved`` writes both), and names the check,
the backend and whatever else decides the answer. If an output was wrong, it ends with the same call
in plain JAX, as comments, for a bug report. See "Scripts of failures" in docs/reference.md.

``script_of`` puts the text together. Below it: what decides the answer, the call in plain JAX,
``Writer``, which writes the expression for a value, and where functions are found again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import inspect
import math
import re
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from pallas_sim.dtypes import is_complex
from pallas_sim.errors import PallasError
from pytest_pallas.backends.interpreters import Interpreter
from pytest_pallas.backends.protocol import Backend, label
from pytest_pallas.backends.registry import FAMILIES, REPLACED, compiling, parse
from pytest_pallas.checks import NAMES as CHECKS
from pytest_pallas.checks import SANITIZERS
from pytest_pallas.checks.context import CheckContext, call
from pytest_pallas.checks.verdict import Failure
from pytest_pallas.errors import CostError, MismatchError, witness_of
from pytest_pallas.judge.references import flatten
from pytest_pallas.judge.tolerance import Tolerance
from pytest_pallas.options import Options
from pytest_pallas.replay.parts import compiled
from pytest_pallas.session import Session
from pytest_pallas.spec import CallProperties


class NoScriptError(Exception):
    """There is no script; the message says why."""


@dataclass(frozen=True)
class Script:
    """A script.

    Attributes:
      text: the source.
      arrays: what it reads from the file beside it, by key; empty if it holds all itself.
      missing: what its reader must fill in before it runs.
    """

    text: str
    arrays: Mapping[str, Any] = field(default_factory=dict[str, Any])
    missing: tuple[str, ...] = ()


def script_of(
    session: Session, error: PallasError, failure: Failure, *, test: str, replay: str
) -> Script:
    """Write the script for a failure.

    Args:
      session: of the failing test.
      error: what the check raised.
      failure: the check and the call.
      test: the pytest node id.
      replay: the command that runs the example again with pytest.

    Raises:
      NoScriptError: a script cannot repeat the failure.
    """
    if isinstance(error, CostError):
        raise NoScriptError("it would not have the recorded costs to compare with")
    writer = Writer()
    order = witness_of(error)
    lines = list(_check_lines(writer, session, failure, witness=order, timed_out=error.timed_out))
    if failure.check == "forward" and isinstance(error, MismatchError):
        lines += _in_plain_jax(failure)
    preamble = list(_preamble(writer, session, failure))
    if writer.missing:
        preamble.append(f"sys.exit({'fill in ' + '; '.join(writer.missing)!r})")
    header = _header(error, failure, test, replay, stored=bool(writer.arrays))
    text = "\n".join([*header, *preamble, *lines, ""])
    return Script(text, writer.arrays, tuple(writer.missing))


def _header(
    error: PallasError, failure: Failure, test: str, replay: str, *, stored: bool
) -> Iterator[str]:
    backend = failure.context.backend
    yield f'"""{failure.name}: {failure.check} on {label(backend)} fails.'
    yield ""
    yield "This script repeats the failure. It needs pytest-pallas, and no pytest session."
    yield '"""'
    yield f"# test: {test}"
    if replay:
        yield f"# With pytest: {replay}"
    if stored:
        yield "# Its arrays are in the file of the same name that ends in .npz."
    yield "#"
    for line in str(error).splitlines():
        yield f"# {line}".rstrip()
    yield ""


def _preamble(writer: Writer, session: Session, failure: Failure) -> Iterator[str]:
    """Yield imports and settings: what decides devices comes before what may start JAX."""
    context = failure.context
    folders = {module: folder_of(module, Path(file)) for module, file in writer.modules.items()}
    imports = {"import jax", "import numpy as np", "import pytest_pallas", *writer.imports}
    if any(folders.values()) or writer.missing:
        imports.add("import sys")
    if not all(folders.values()):
        imports.add("from pytest_pallas.replay.parts import load")
    if writer.arrays:
        imports.add("from pathlib import Path")
    several = failure.check == "sharding" or context.settings.devices > 1 or writer.meshes
    simulated = several and context.backend.kind != "hardware"
    if simulated:
        imports |= {"import os", "from pytest_pallas.backends.devices import simulate"}
    standard = {line for line in imports if line.split()[1] in sys.stdlib_module_names}
    for group in (standard, imports - standard):
        yield from sorted(group, key=lambda line: (not line.startswith("import"), line))
        yield from ("",) if group else ()
    if simulated:
        yield f"simulate({session.options.devices}, os.environ, explicit=True)  # before JAX starts"
    config: Any = jax.config
    if config.jax_enable_x64:
        yield 'jax.config.update("jax_enable_x64", True)'
    precision = config.jax_default_matmul_precision
    if precision is not None:
        yield f'jax.config.update("jax_default_matmul_precision", {precision!r})'
    for folder in dict.fromkeys(filter(None, folders.values())):
        yield f"sys.path.insert(0, {quoted(folder)})"
    for name, file in sorted(writer.modules.items()):
        if folders[name]:
            yield f"import {name} as {variable_name(name)}"
        else:
            yield f"{variable_name(name)} = load({quoted(name)}, {quoted(file)})"
    if writer.arrays:
        yield 'STORED = np.load(Path(__file__).with_suffix(".npz"))'
    yield ""


def _check_lines(
    writer: Writer, session: Session, failure: Failure, *, witness: str, timed_out: bool
) -> Iterator[str]:
    """Yield the call of ``pytest_pallas.check``.

    Raises:
      NoScriptError: the backend is one of the project.
    """
    context, arguments = failure.context, failure.context.arguments
    # A trace that did not end would not end here either.
    backend = backend_name(context.backend if timed_out else ran_on(context), "the backend")
    kernel, mesh = without_mesh(context.kernel)
    reference, _ = without_mesh(context.reference)
    passed = ["kernel", "*args"]
    yield f"kernel = {writer.named('the kernel', kernel)}"
    if reference is not None:
        yield f"reference = {writer.named('the reference', reference)}"
        passed.append("reference=reference")
    yield f"args = {writer.named('the arguments', tuple(arguments.args))}"
    keywords = {"options": dict(arguments.options), "tuning": dict(arguments.tuning)}
    # The functions of relations and raises may read what was drawn.
    reads_recipe = any(
        getattr(context, promise) and reads(failure.check, promise)
        for promise in ("relations", "raises")
    )
    if reads_recipe and arguments.recipe:
        keywords["recipe"] = _writable(arguments.recipe)
    keywords = {name: value for name, value in keywords.items() if value}
    for name, value in keywords.items():
        yield f"{name} = {writer.named(f'the {name}', value)}"
    named = [f"{name}={name}" for name in keywords]
    if reads_recipe and arguments.recipe:
        passed[1] = "call"
        yield f"call = pytest_pallas.Arguments({', '.join(['args', *named])})"
    else:
        passed += named
    check = f'"{failure.check}"'
    if of_project(failure.check):
        check = writer.named(f"the check {failure.check}", session.checks[failure.check])
    passed += [f'backend="{backend}"', f"checks={check}"]
    for name in ("arithmetic", "read_fences"):
        if value := getattr(context.settings, name):
            passed.append(f'{name}="{value}"')
    if witness:
        passed.append(f'witness="{witness}"')
    if mesh is not None:
        passed.append(f"mesh={writer.mapping(mesh.shape)}")
    for name, value in promises_of(failure, kernel).items():
        passed.append(f"{name}={writer.named(f'{name}=', value)}")
    if getattr(kernel, "__name__", "") != failure.name:
        passed.append(f'name="{failure.name}"')
    yield ""
    yield _bracketed("pytest_pallas.check(", passed, ")")
    yield 'print("no failure")'


def _writable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a script can hold."""
    writable: dict[str, Any] = {}
    for name, value in values.items():
        with contextlib.suppress(UnwritableError):
            Writer().write(value)
            writable[name] = value
    return writable


# Where the call of a failure ran.

#: The backends that ``pytest_pallas.check`` knows by name.
_KNOWN = {family.name: family for family in (*FAMILIES, *compiling(lambda: None))}


def ran_on(context: CheckContext) -> Backend:
    """Return the backend that executed the call: an interpreter where a simulator lacks it."""
    backend: Any = context.backend
    otherwise = getattr(backend, "otherwise", None)
    if otherwise is not None:
        made = call(context, context.kernel, context.arguments.args)
        with contextlib.suppress(Exception):  # what the kernel raises when it is traced
            if backend.lacks(made) is not None:
                return otherwise
    return backend


def backend_name(backend: Backend, what: str) -> str:
    """Return the name of a backend.

    Raises:
      NoScriptError: a script does not know it.
    """
    if backend.name not in _KNOWN:
        raise NoScriptError(f"{what} {label(backend)} is one of the project, which a script lacks")
    return label(backend)


def without_mesh(function: Any) -> tuple[Any, Mesh | None]:
    """Return a function without the mesh that it is bound to, and the mesh."""
    if isinstance(function, functools.partial):
        rest = dict(function.keywords)
        mesh = rest.pop("mesh", None)
        if isinstance(mesh, Mesh):  # a partial of a partial is one with the keywords of both
            plain = not function.args and not rest
            inner = (
                function.func if plain else functools.partial(function.func, *function.args, **rest)
            )
            return inner, mesh
    return function, None


# What must hold of the kernel, as keyword arguments of ``pytest_pallas.check``.

#: The checks that read a promise of a spec, where not every check does. One of a project may.
READERS: Mapping[str, tuple[str, ...]] = {
    "differentiable": ("gradient", "grid"),
    "batch_axes": ("sharding",),
    "relations": ("linearity", "permutation", "relation"),
    "raises": ("raises",),
    "others": ("cross",),
    "ignored": ("padding", "oracle-strength"),
    "claimed": ("grid",),
}

#: The keyword arguments besides, with their defaults.
_USUAL: Mapping[str, Any] = {
    **{f.name: f.default for f in dataclasses.fields(CallProperties) if f.name != "vmappable"},
    "tolerance": Tolerance(),
    "timeout": Options.timeout,
}

#: The fields of ``RunSettings`` that are set because a sanitizer watches every run.
_WATCHES = ("races", "dma")


def of_project(check: str) -> bool:
    """Return whether a check is one that a project adds."""
    return check not in (*CHECKS, *SANITIZERS)


def reads(check: str, promise: str) -> bool:
    """Return whether a check may read a promise."""
    return of_project(check) or check in READERS.get(promise, (check,))


def promises_of(failure: Failure, kernel: Any) -> dict[str, Any]:
    """Return the keyword arguments that the check reads and that differ from their defaults.

    Args:
      failure: what failed.
      kernel: the kernel as it is written into the script.

    Raises:
      NoScriptError: it is compared with a backend of the project.
    """
    context = failure.context
    promises: dict[str, Any] = {}
    for name, usual in _USUAL.items():
        value = getattr(context.settings if name in ("jit", "timeout") else context, name)
        differs = bool(value) if usual == () else value != usual
        if differs and reads(failure.check, name):
            promises[name] = value
    if reads(failure.check, "others"):
        peers = {
            backend_name(other.backend, "the peer"): without_mesh(other.function)[0]
            for other in context.others
            if other.is_kernel
        }
        if peers:
            alike = all(function is kernel for function in peers.values())
            promises["peers"] = tuple(peers) if alike else peers
        implementations = {
            other.name: without_mesh(other.function)[0]
            for other in context.others
            if not other.is_kernel
        }
        if implementations:
            promises["implementations"] = implementations
    watched = [name for name in _WATCHES if getattr(context.settings, name)]
    if watched != list(_WATCHES):
        promises["sanitize"] = watched or "none"
    return promises


# The failing call in plain JAX, as comments: for a bug report to JAX.

#: What people call the modules that interpreters take their parameters from.
_ALIASES = {
    "jax.experimental.pallas.tpu": "pltpu",
    "jax.experimental.pallas.mosaic_gpu": "plgpu",
}


def _in_plain_jax(failure: Failure) -> Iterator[str]:
    """Yield the kernel, the reference, and the largest difference; nothing on a mesh."""
    context = failure.context
    if context.backend.kind == "compiling" or without_mesh(context.kernel)[1] is not None:
        return
    arguments = "*args" + (", **options" if context.arguments.options else "")
    actual = f"actual = kernel({arguments}{', **tuning' if context.arguments.tuning else ''})"
    yield ""
    yield "# For a bug report to JAX: the same call without pytest-pallas."
    backend = context.backend
    if backend.kind == "simulating":  # JAX's own interpreter runs what a simulator ran
        names = REPLACED.get(backend.name, ())
        backend = parse(names[-1], _KNOWN)[0] if names else backend
    if isinstance(backend, Interpreter):
        parameters = Writer().write(backend.parameters)
        for module, alias in _ALIASES.items():
            parameters = parameters.replace(f"{module}.", f"{alias}.")
        yield "# from jax.experimental.pallas import tpu as pltpu"
        if backend.platform == "gpu":
            yield "# from jax.experimental.pallas import mosaic_gpu as plgpu"
        yield f"# with pltpu.force_tpu_interpret_mode({parameters}):"
        actual = f"    {actual}"
    yield f"# {actual}"
    yield f"# wanted = reference({arguments})"
    yield "# for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(wanted)):"
    result = failure.result
    values = () if result is None or result.outcome is None else result.outcome.values
    kind = "complex" if any(is_complex(leaf.dtype) for _, leaf in flatten(values)) else "float"
    difference = f"np.asarray(one, {kind}) - np.asarray(other, {kind})"
    yield f'#     print("largest difference", np.abs({difference}).max())'


# The expression for a value.

#: Arrays up to this many elements are written as numbers, if these make the same bits again.
READABLE = 64

#: Columns of a line of the script.
_COLUMNS = 96

_PLAIN = (bool, int, str, bytes, type(None), type(Ellipsis), range)


class UnwritableError(Exception):
    """No expression makes this value again; the message says what it is."""


@dataclass
class Writer:
    """Writes expressions, and remembers what they need.

    Attributes:
      modules: the modules to import, by name: their files.
      arrays: what goes to the file beside the script, by key: arrays, or the bytes of one whose
        dtype is not numpy's.
      imports: statements that they need, besides jax and numpy.
      meshes: whether they make a mesh.
      missing: descriptions of what has no expression.
    """

    modules: dict[str, str] = field(default_factory=dict[str, str])
    arrays: dict[str, Any] = field(default_factory=dict[str, Any])
    imports: set[str] = field(default_factory=set[str])
    meshes: bool = False
    missing: list[str] = field(default_factory=list[str])

    def named(self, what: str, value: Any) -> str:
        """Write the expression for a value; without one, ``None``, which is noted as missing."""
        try:
            return self.write(value)
        except UnwritableError as problem:
            self.missing.append(f"{what}: {problem}")
            return "None"

    def write(self, value: Any) -> str:
        """Write the expression for a value, on several lines if it is long.

        Raises:
          UnwritableError: no expression makes it again.
        """
        try:
            return self._flat(value)
        except RecursionError:
            raise UnwritableError(f"{describe(value)}, which holds itself") from None

    def _flat(self, value: Any) -> str:
        match value:
            case np.ndarray() | jax.Array():
                return self._array(value)
            case enum.Enum():
                return f"{self._flat(type(value))}.{value.name}"
            case np.generic():
                return f"{self._array(np.asarray(value))}[()]"
            case np.dtype():
                return f'np.dtype("{value.name}")'
            case jax.ShapeDtypeStruct():
                return f'jax.ShapeDtypeStruct({value.shape}, np.dtype("{value.dtype}"))'
            case Mesh():
                self.imports.add("from pytest_pallas.backends.devices import make_mesh")
                self.meshes = True
                platform = value.devices.flat[0].platform
                return f'make_mesh({self.mapping(value.shape)}, "{platform}")'
            case PartitionSpec():
                return f"jax.sharding.PartitionSpec{tuple(value)!r}"
            case slice():
                return f"slice({', '.join(map(self._flat, (value.start, value.stop, value.step)))})"
            case tuple() | list() | set() | frozenset():
                return self._sequence(value)
            case dict() | types.MappingProxyType():
                return self.mapping(value)
            case _ if type(value) is str:
                return quoted(value)
            case _ if type(value) in _PLAIN:
                return repr(value)
            case _ if type(value) is float:
                return repr(value) if math.isfinite(value) else f'float("{value}")'
            case _ if type(value) is complex:
                return f"complex({self._flat(value.real)}, {self._flat(value.imag)})"
            case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
                arguments = [
                    f"{entry.name}={self._flat(getattr(value, entry.name))}"
                    for entry in dataclasses.fields(value)
                    if entry.init and not _same(getattr(value, entry.name), entry.default)
                ]
                return f"{self._flat(type(value))}({', '.join(arguments)})"
            case _:
                return self._function(value)

    def mapping(self, values: Mapping[Any, Any]) -> str:
        """Write a dict."""
        items = [f"{self._flat(key)}: {self._flat(value)}" for key, value in values.items()]
        return _bracketed("{", items, "}")

    def _sequence(self, value: Any) -> str:
        items = [self._flat(item) for item in value]
        names: Any = getattr(value, "_fields", None)
        if type(value) is list:
            return _bracketed("[", items, "]")
        if names is not None:  # a named tuple
            arguments = [f"{name}={item}" for name, item in zip(names, items, strict=True)]
            return f"{self._flat(type(value))}({', '.join(arguments)})"
        if isinstance(value, tuple):  # also strategies.Drawn, which is a tuple to kernels
            return _bracketed("(", items, ",)" if len(items) == 1 else ")")
        return f"{type(value).__name__}({_bracketed('[', sorted(items), ']')})"

    def _array(self, value: Any) -> str:
        """Write an array as numbers that make the same bits and can be read; else from the file."""
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            data = self._array(np.asarray(jax.random.key_data(value)))
            return f'jax.random.wrap_key_data({data}, impl="{jax.random.key_impl(value)}")'
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise UnwritableError(f"an array of dtype {array.dtype}")
        if array.size == 0:
            return f'np.zeros({array.shape}, "{array.dtype.name}")'
        if array.size <= READABLE and (text := _readable(array)):
            return text
        first = array.reshape(-1)[:1]
        if array.tobytes() == array.size * first.tobytes() and (text := _readable(first)):
            return f"np.full({array.shape}, {text})"
        key = f"array_{len(self.arrays)}"
        if array.dtype.isbuiltin == 1:
            self.arrays[key] = array
            return f'STORED["{key}"]'
        # the file does not keep other dtypes
        self.arrays[key] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return f'STORED["{key}"].view(np.dtype("{array.dtype.name}")).reshape({array.shape})'

    def _function(self, value: Any) -> str:
        """Write a function, class or object of a module: its name, or its place in the source."""
        if isinstance(value, functools.partial):
            self.imports.add("import functools")
            arguments = [self._flat(value.func), *map(self._flat, value.args)]
            arguments += [f"{name}={self._flat(item)}" for name, item in value.keywords.items()]
            return f"functools.partial({', '.join(arguments)})"
        if isinstance(value, types.MethodType):
            return f"{self._flat(value.__self__)}.{value.__name__}"
        public = public_name(value)
        if public:
            self.imports.add(f"import {public.rpartition('.')[0]}")
            return public
        module = sys.modules.get(str(getattr(value, "__module__", None)))
        file = getattr(module, "__file__", None)
        if module is None or file is None or Path(file).suffix != ".py":
            raise UnwritableError(describe(value))
        variable, attribute = variable_name(module.__name__), _attribute(module, value)
        if attribute:
            self.modules[module.__name__] = file
            return f"{variable}.{attribute}"
        if hasattr(value, "lower") and hasattr(value, "__wrapped__"):  # jax.jit; scripts jit
            return self._flat(value.__wrapped__)
        number = _number_of(value, file)
        if number is None:
            raise UnwritableError(describe(value))
        self.modules[module.__name__] = file
        self.imports.add("from pytest_pallas.replay.parts import nested")
        arguments = [variable, quoted(value.__code__.co_qualname), str(number)]
        arguments += [self._flat(cell.cell_contents) for cell in value.__closure__ or ()]
        if value.__defaults__:
            arguments.append(f"defaults={self._flat(value.__defaults__)}")
        if value.__kwdefaults__:
            arguments.append(f"keywords={self._flat(value.__kwdefaults__)}")
        return f"nested({', '.join(arguments)})"


def quoted(text: str) -> str:
    """Write a string between double quotes, where that is possible."""
    return f'"{text}"' if repr(text) == f"'{text}'" and '"' not in text else repr(text)


def _same(value: Any, default: Any) -> bool:
    """Return whether a field has its default; of arrays it must be that very array."""
    if value is default:
        return True
    return type(value) is type(default) and isinstance(value, (*_PLAIN, float)) and value == default


def _bracketed(left: str, items: list[str], right: str) -> str:
    """Write items between brackets, one a line if they are long."""
    line = f"{left}{', '.join(items)}{right}"
    if len(line) <= _COLUMNS and "\n" not in line:
        return line
    inner = "".join(f"    {textwrap.indent(item, '    ').lstrip()},\n" for item in items)
    return f"{left}\n{inner}{right.lstrip(',')}"


def _readable(array: np.ndarray[Any, Any]) -> str | None:
    """Write the array as numbers; None if they do not make the same bits again."""
    if array.dtype.kind == "c":
        return None
    wide = array if array.dtype.kind in "biu" else array.astype(np.float64)
    if not np.isfinite(wide).all():
        return None  # no literals
    whole = wide.dtype.kind == "f" and (wide == np.rint(wide)).all() and (abs(wide) < 2**31).all()
    try:
        plain = (wide.astype(np.int64) if whole else wide).tolist()
        again = np.array(plain, array.dtype).reshape(array.shape)
    except (TypeError, ValueError, OverflowError):
        return None
    if again.tobytes() != array.tobytes():
        return None
    rows = _bracketed("[", [repr(row) for row in plain], "]") if array.ndim > 1 else repr(plain)
    return f'np.array({rows}, "{array.dtype.name}")'


# Where a function is found again: by a name that can be imported, or by its code in the source.

#: Public modules whose names are looked up, for what lives in a private one (``jax.nn.silu``).
_PUBLIC = (
    "pytest_pallas",
    "pallas_sim",
    "jax.numpy",
    "jax.nn",
    "jax.lax",
    "jax.scipy.special",
    "jax.scipy.linalg",
    "jax.random",
    "jax.experimental.pallas",
    "jax.experimental.pallas.tpu",
    "jax.experimental.pallas.mosaic_gpu",
    "jax",
    "numpy",
    "math",
    "operator",
    "builtins",
)


def public_name(value: Any) -> str:
    """Return the name of something public of JAX, numpy, Python or this package; else ""."""
    own = getattr(value, "__name__", "")
    if isinstance(own, str) and own:
        for name in _PUBLIC:
            if getattr(sys.modules.get(name), own, None) is value:
                return f"{name}.{own}"
    return ""


def folder_of(module: str, file: Path) -> str:
    """Return the folder from which a module is imported by its name, or "" if there is none."""
    path = file.parent if file.name == "__init__.py" else file.with_suffix("")
    names = module.split(".")
    if list(path.parts[-len(names) :]) != names or module == "__main__":
        return ""
    return str(path.parents[len(names) - 1])


def variable_name(module: str) -> str:
    """Return the name of a module in a script."""
    return re.sub(r"\W", "_", module) + "_module"


def describe(value: Any) -> str:
    """Describe a value in a few words, and where it was defined."""
    code: Any = getattr(value, "__code__", None)
    name = getattr(value, "__qualname__", None) or f"{value!r:.80}"
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else name


def _attribute(module: types.ModuleType, value: Any) -> str:
    """Return the name that a module has for something: its own, or a global that holds it."""
    owner: Any = module
    qualname = str(getattr(value, "__qualname__", ""))
    for name in qualname.split("."):
        owner = getattr(owner, name, None)
    if owner is value and qualname:
        return qualname
    return next((n for n, own in vars(module).items() if own is value and n.isidentifier()), "")


def _number_of(function: Any, file: str) -> int | None:
    """Return the number of a function among those of its qualified name; None without source.

    Functions of one line differ in their code only: two lambdas, say.
    """
    if not isinstance(function, types.FunctionType) or inspect.unwrap(function) is not function:
        return None
    code = function.__code__
    try:
        same = compiled(file, code.co_qualname)
    except (OSError, SyntaxError, ValueError):
        return None

    def signature(code: types.CodeType) -> Any:
        return code.co_firstlineno, code.co_freevars, code.co_varnames[: code.co_argcount]

    def content(code: types.CodeType) -> Any:
        return code.co_code, code.co_consts, code.co_names

    fits = [number for number, one in enumerate(same) if signature(one) == signature(code)]
    if len(fits) > 1:
        fits = [number for number in fits if content(same[number]) == content(code)]
    return fits[0] if fits else None
