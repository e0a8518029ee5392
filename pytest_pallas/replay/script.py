"""From a value to the Python expression that makes it again, for the script of a failure."""

from __future__ import annotations

import base64
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
import zlib
from collections.abc import Iterator, Mapping, Sequence
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
from pytest_pallas.errors import CostError, MismatchError
from pytest_pallas.judge.references import flatten
from pytest_pallas.judge.tolerance import Tolerance
from pytest_pallas.option_values import Options
from pytest_pallas.session import Session

#: Arrays up to this many elements are written as numbers, if these make the same bits again, and
#: up to so many bytes as these.
READABLE = 64

#: Characters of arrays that a script may hold as text; with more, they go to a file beside it.
MOST_TEXT = 1024

_PLAIN = (bool, int, str, bytes, type(None), type(Ellipsis), range)


class UnwritableError(Exception):
    """No expression makes this value again; the message says what it is."""


@dataclass
class Writer:
    """Writes expressions, and remembers what they need.

    Attributes:
      most: how many characters of arrays may be in expressions.
      modules: modules to load, by name: the folder to import from ("" to load the file), the file.
      arrays: what goes to the file beside the script, by key: arrays, or the bytes of one whose
        dtype is not numpy's.
      imports: statements that they need.
      meshes: whether they make a mesh.
      text: how many characters of arrays are in expressions so far.
    """

    most: int = MOST_TEXT
    modules: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    arrays: dict[str, Any] = field(default_factory=dict[str, Any])
    imports: set[str] = field(default_factory=set[str])
    meshes: bool = False
    text: int = 0

    def write(self, value: Any, indent: int = 0) -> str:
        """The expression for a value, on several lines if it is long.

        Raises:
          UnwritableError: there is none.
        """
        try:
            text = self._flat(value)
        except RecursionError:
            raise UnwritableError(f"{describe(value)}, which holds itself") from None
        return text if "\n" not in text else textwrap.indent(text, " " * indent).lstrip()

    def _flat(self, value: Any) -> str:
        if isinstance(value, (np.ndarray, jax.Array)):
            return self._array(value)
        if isinstance(value, enum.Enum):
            return f"{self._flat(type(value))}.{value.name}"
        if type(value) is str:
            return quoted(value)
        if isinstance(value, _PLAIN) and type(value) in _PLAIN:
            return repr(value)
        if type(value) is float:
            return repr(value) if math.isfinite(value) else f'float("{value}")'
        if type(value) is complex:
            return f"complex({self._flat(value.real)}, {self._flat(value.imag)})"
        if isinstance(value, np.generic):
            return f"{self._array(np.asarray(value))}[()]"
        if isinstance(value, np.dtype):
            return f'np.dtype("{value.name}")'
        if isinstance(value, jax.ShapeDtypeStruct):
            return f'jax.ShapeDtypeStruct({value.shape}, np.dtype("{value.dtype}"))'
        if isinstance(value, Mesh):
            self.imports.add("from pytest_pallas.backends.devices import make_mesh")
            self.meshes = True
            platform = value.devices.flat[0].platform
            return f'make_mesh({self.mapping(value.shape)}, "{platform}")'
        if isinstance(value, PartitionSpec):
            return f"jax.sharding.PartitionSpec{tuple(value)!r}"
        if isinstance(value, (tuple, list, set, frozenset, slice)):
            return self._sequence(value)
        if isinstance(value, (dict, types.MappingProxyType)):
            return self.mapping(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            given = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
            plain = {f.name: f.default for f in dataclasses.fields(value)}
            words = [
                f"{name}={self._flat(item)}"
                for name, item in given.items()
                if not _same(item, plain[name])
            ]
            return f"{self._flat(type(value))}({', '.join(words)})"
        return self._function(value)

    def mapping(self, values: Mapping[Any, Any]) -> str:
        """A dict."""
        return _bracketed(
            "{", [f"{self._flat(key)}: {self._flat(value)}" for key, value in values.items()], "}"
        )

    def _sequence(self, value: Any) -> str:
        if isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            return f"slice({', '.join(map(self._flat, parts))})"
        items = [self._flat(item) for item in value]
        if type(value) is list:
            return _bracketed("[", items, "]")
        names: Any = getattr(value, "_fields", None)
        if names is not None:  # a named tuple
            words = [f"{name}={item}" for name, item in zip(names, items, strict=True)]
            return f"{self._flat(type(value))}({', '.join(words)})"
        if isinstance(value, tuple):  # also strategies.Drawn, which is a tuple to kernels
            return _bracketed("(", items, ",)" if len(items) == 1 else ")")
        return f"{type(value).__name__}({_bracketed('[', sorted(items), ']')})"

    def _array(self, value: Any) -> str:
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            data = self._array(np.asarray(jax.random.key_data(value)))
            return f'jax.random.wrap_key_data({data}, impl="{jax.random.key_impl(value)}")'
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise UnwritableError(f"an array of dtype {array.dtype}")
        if array.size == 0:
            return f'np.zeros({array.shape}, "{array.dtype.name}")'
        short = array.size <= READABLE and "complex" not in array.dtype.name
        readable = _readable(array) if short else None
        if readable is not None or array.size == 1:
            return readable or self._text(array)
        first = array.reshape(-1)[:1]
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if (data.reshape(array.size, -1) == first.view(np.uint8)).all():
            return f"np.full({array.shape}, {self._array(first)})"
        return self._text(array)

    def _text(self, array: np.ndarray[Any, Any]) -> str:
        """The array as its bytes."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        made = f'.view(np.dtype("{array.dtype.name}")).reshape({array.shape})'
        if data.nbytes <= READABLE:
            return f'np.frombuffer(bytes.fromhex("{data.tobytes().hex()}"), np.uint8){made}'
        packed = base64.b85encode(zlib.compress(data, 9)).decode()
        if self.text + len(packed) <= self.most:
            self.text += len(packed)
            self.imports |= {"import base64", "import zlib"}
            lines = [packed[start : start + 88] for start in range(0, len(packed), 88)]
            text = "\n".join(f'    "{line}"' for line in lines)
            unpacked = f"zlib.decompress(base64.b85decode(\n{text}\n))"
            return f"np.frombuffer({unpacked}, np.uint8){made}"
        key = f"array_{len(self.arrays)}"
        plain = array.dtype.isbuiltin == 1  # other dtypes are not kept as what they are
        self.arrays[key] = array if plain else data
        return f'STORED["{key}"]{"" if plain else made}'

    def _function(self, value: Any) -> str:
        if isinstance(value, functools.partial):
            words = [self._flat(value.func), *map(self._flat, value.args)]
            words += [f"{name}={self._flat(item)}" for name, item in value.keywords.items()]
            return f"functools.partial({', '.join(words)})"
        public = public_name(value)
        if public:
            self.imports.add(f"import {public.rpartition('.')[0]}")
            return public
        place = find(value)
        if place is None:
            raise UnwritableError(describe(value))
        if place.owner is not None:  # a bound method
            return f"{self._flat(place.owner)}.{place.attribute}"
        if place.wrapped is not None:  # jitted where it is nested; scripts jit
            return self._flat(place.wrapped)
        self.modules[place.module] = (place.folder, place.file)
        module = variable_name(place.module)
        if place.attribute:
            return f"{module}.{place.attribute}"
        self.imports.add("from pytest_pallas.replay.parts import nested")
        words = [module, quoted(place.qualname), str(place.number), *map(self._flat, place.cells)]
        for name, defaults in (
            ("defaults", value.__defaults__),
            ("keywords", value.__kwdefaults__),
        ):
            words += [f"{name}={self._flat(defaults)}"] if defaults else []
        return f"nested({', '.join(words)})"


def quoted(text: str) -> str:
    """A string between double quotes, where it can be."""
    return f'"{text}"' if repr(text) == f"'{text}'" and '"' not in text else repr(text)


def _same(value: Any, default: Any) -> bool:
    """Whether a field has its default; of arrays it must be that very array."""
    if value is default:
        return True
    return type(value) is type(default) and isinstance(value, (*_PLAIN, float)) and value == default


def _bracketed(left: str, items: list[str], right: str) -> str:
    """Items between brackets, one a line if they are long."""
    line = f"{left}{', '.join(items)}{right}"
    if len(line) <= 88 and "\n" not in line:
        return line
    inner = "".join(f"    {textwrap.indent(item, '    ').lstrip()},\n" for item in items)
    return f"{left}\n{inner}{right.lstrip(',')}"


def _readable(array: np.ndarray[Any, Any]) -> str | None:
    """The array as numbers, if they make the same bits again."""
    wide = array if array.dtype.kind in "biu" else array.astype(np.float64)
    if not np.isfinite(wide).all():
        return None  # no literals
    whole = wide.dtype.kind == "f" and (wide == np.rint(wide)).all() and (abs(wide) < 2**31).all()
    try:
        plain = (wide.astype(np.int64) if whole else wide).tolist()
        again = np.array(plain, array.dtype).reshape(array.shape)
    except (TypeError, ValueError, OverflowError):
        return None
    text = repr(plain)
    if again.tobytes() != array.tobytes():
        return None
    if array.ndim > 1 and len(text) > 88:
        text = _bracketed("[", [repr(row) for row in plain], "]")
    return f'np.array({text}, "{array.dtype.name}")'


# Where a function is to be found again: by a name that can be imported, or by its source.


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


#: Where what is found there was defined.
_HOMES = (
    *("", "jax", "numpy", "math", "builtins", "_operator", "jaxlib", "ml_dtypes"),
    "pytest_pallas",
    "pallas_sim",
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a function is.

    Attributes:
      module: name of its module.
      folder: from which that can be imported; "" if it must be loaded from its file.
      file: of the module.
      attribute: dotted name in the module, or of a method; "" for a nested function.
      qualname: of a nested function.
      number: which of those with this qualified name, in the order of the source.
      cells: values of its free variables.
      owner: the object of a bound method.
      wrapped: what to use in its place.
    """

    module: str = ""
    folder: str = ""
    file: str = ""
    attribute: str = ""
    qualname: str = ""
    number: int = 0
    cells: tuple[Any, ...] = ()
    owner: Any = None
    wrapped: Any = None


def public_name(value: Any) -> str:
    """The name of something public of JAX, numpy, Python or this package; else ""."""
    home = str(getattr(value, "__module__", None) or "").partition(".")[0]
    if home not in _HOMES:
        return ""
    for name in _PUBLIC:
        module = sys.modules.get(name)
        own = getattr(value, "__name__", "")
        if module is not None and own and getattr(module, own, None) is value:
            return f"{name}.{own}"
    return ""


def find(value: Any) -> Place | None:
    """Where a function, class or object of a module is; None if it cannot be found again."""
    if isinstance(value, types.MethodType):
        return Place(owner=value.__self__, attribute=value.__name__)
    module = sys.modules.get(str(getattr(value, "__module__", None)))
    file = getattr(module, "__file__", None)
    if module is None or file is None or Path(file).suffix != ".py":
        return None
    name, folder = module.__name__, folder_of(module.__name__, Path(file))
    attribute = _attribute(module, value)
    if attribute:
        return Place(module=name, folder=folder, file=file, attribute=attribute)
    if hasattr(value, "lower") and hasattr(value, "__wrapped__"):
        return Place(wrapped=value.__wrapped__)  # jax.jit
    if not isinstance(value, types.FunctionType):
        return None
    return _nested(value, name, folder, file)


def folder_of(module: str, file: Path) -> str:
    """The folder from which a module is imported by its name, or "" if there is none."""
    path = file.parent if file.name == "__init__.py" else file.with_suffix("")
    names = module.split(".")
    if list(path.parts[-len(names) :]) != names or module == "__main__":
        return ""
    return str(path.parents[len(names) - 1])


def variable_name(module: str) -> str:
    """What a script calls a module."""
    return re.sub(r"\W", "_", module) + "_module"


def describe(value: Any) -> str:
    """A value in a few words, and where it was defined."""
    code: Any = getattr(value, "__code__", None)
    name = getattr(value, "__qualname__", None) or f"{value!r:.80}"
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else name


def _attribute(module: types.ModuleType, value: Any) -> str:
    """The name that a module has for something: its own, or a global that holds it."""
    found: Any = module
    qualname = str(getattr(value, "__qualname__", ""))
    for name in qualname.split("."):
        found = getattr(found, name, None)
    if found is value and qualname:
        return qualname
    return next((n for n, each in vars(module).items() if each is value and n.isidentifier()), "")


def _nested(function: types.FunctionType, name: str, folder: str, file: str) -> Place | None:
    """A function that its module has no name for, by its code in the compiled source."""
    try:
        cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
        whole = compile(Path(file).read_text(encoding="utf-8"), file, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return None
    code = function.__code__
    same = [each for each in _codes(whole) if each.co_qualname == code.co_qualname]
    fits = [
        number
        for number, each in enumerate(same)
        if each.co_firstlineno == code.co_firstlineno
        and each.co_freevars == code.co_freevars
        and each.co_varnames[: each.co_argcount] == code.co_varnames[: code.co_argcount]
    ]
    if len(fits) > 1:
        content = (code.co_code, code.co_consts, code.co_names)
        fits = [
            n for n in fits if content == (same[n].co_code, same[n].co_consts, same[n].co_names)
        ]
    if not fits or inspect.unwrap(function) is not function:
        return None
    return Place(
        module=name,
        folder=folder,
        file=file,
        qualname=code.co_qualname,
        number=fits[0],
        cells=cells,
    )


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield inner
            yield from _codes(inner)


# Where the call of a failure ran, as a script names it.


class NoScriptError(Exception):
    """Why there is no script."""


#: The backends that ``pytest_pallas.check`` knows by name.
_KNOWN = {family.name: family for family in (*FAMILIES, *compiling(lambda: None))}


def ran_on(context: CheckContext) -> Backend:
    """The backend that executed the call: an interpreter where the simulator lacks something."""
    backend: Any = context.backend
    otherwise = getattr(backend, "otherwise", None)
    if otherwise is not None:
        made = call(context, context.kernel, context.arguments.args)
        with contextlib.suppress(Exception):  # what the kernel raises when it is traced
            if backend.lacks(made) is not None:
                return otherwise
    return backend


def backend_name(backend: Backend, what: str) -> str:
    """The name of a backend.

    Raises:
      NoScriptError: a script does not know it.
    """
    if backend.name not in _KNOWN:
        raise NoScriptError(f"{what} {label(backend)} is one of the project, which a script lacks")
    return label(backend)


def without_mesh(function: Any) -> tuple[Any, Mesh | None]:
    """A function without the mesh that it is bound to, and that."""
    if isinstance(function, functools.partial) and not function.args:
        mesh = function.keywords.get("mesh")
        if isinstance(mesh, Mesh) and list(function.keywords) == ["mesh"]:
            return function.func, mesh
    return function, None


def interpreter_of(backend: Backend) -> Interpreter | None:
    """JAX's own interpreter, to run what a backend ran; None for hardware."""
    if backend.kind == "simulating":
        names = REPLACED.get(backend.name, ())
        backend = parse(names[-1], _KNOWN)[0] if names else backend
    return backend if isinstance(backend, Interpreter) else None


# The failing call in plain JAX, as comments of a script: for a bug report to JAX.


#: What people call the modules that interpreters take their parameters from.
_ALIASES = {
    "jax.experimental.pallas.tpu": "pltpu",
    "jax.experimental.pallas.mosaic_gpu": "plgpu",
}


def in_plain_jax(failure: Failure) -> Iterator[str]:
    """The lines: the kernel, the reference, and the largest difference; none on a mesh."""
    context = failure.context
    if context.backend.kind == "compiling" or without_mesh(context.kernel)[1] is not None:
        return
    options, tuning = context.arguments.options, context.arguments.tuning
    words = "*args" + (", **options" if options else "")
    call = f"actual = kernel({words}{', **tuning' if tuning else ''})"
    finding = failure.finding
    values = () if finding is None or finding.outcome is None else finding.outcome.values
    kind = "complex" if any(is_complex(leaf.dtype) for _, leaf in flatten(values)) else "float"
    yield ""
    yield "# For a bug report to JAX: the same call without pytest-pallas."
    interpreter = interpreter_of(context.backend)
    if interpreter is None:
        yield f"# {call}"
    else:
        written = Writer().write(interpreter.parameters)
        for module, alias in _ALIASES.items():
            written = written.replace(f"{module}.", f"{alias}.")
        yield "# from jax.experimental.pallas import tpu as pltpu"
        if interpreter.platform == "gpu":
            yield "# from jax.experimental.pallas import mosaic_gpu as plgpu"
        yield f"# with pltpu.force_tpu_interpret_mode({written}):"
        yield f"#     {call}"
    yield f"# wanted = reference({words})"
    yield "# for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(wanted)):"
    difference = f"np.asarray(one, {kind}) - np.asarray(other, {kind})"
    yield f'#     print("largest difference", np.abs({difference}).max())'


# What must hold of the kernel of a failure, as keyword arguments of ``pytest_pallas.check``.


#: The checks that read a promise of a spec, where not every check does. One of a project may.
READERS: Mapping[str, tuple[str, ...]] = {
    "differentiable": ("gradient", "grid"),
    "batch_axes": ("sharding",),
    "relations": ("linearity", "permutation", "relation"),
    "raises": ("raises",),
    "others": ("cross",),
    "ignored": ("padding",),
    "claimed": ("grid",),
}

#: The keyword arguments besides, and what they are where nobody gives them.
_USUAL: Mapping[str, Any] = {
    "exact": False,
    "differentiable": (),
    "batch_axes": (),
    "relations": (),
    "raises": (),
    "ignored": None,
    "claimed": (),
    "tolerance": Tolerance(),
    "deterministic": True,
    "nan_ok": False,
    "check_dtype": True,
    "jit": True,
    "timeout": Options.timeout,
}

#: The fields of ``RunSettings`` that are set because a sanitizer watches every run.
_WATCHES = ("races", "dma")


def of_project(check: str) -> bool:
    """Whether a check is one that a project adds."""
    return check not in (*CHECKS, *SANITIZERS)


def reads(check: str, promise: str) -> bool:
    """Whether a check may read a promise."""
    return of_project(check) or check in READERS.get(promise, (check,))


def promises_of(failure: Failure, kernel: Any) -> dict[str, Any]:
    """The keyword arguments that the check reads, and that are not the usual ones.

    Args:
      failure: what failed.
      kernel: the kernel as it is written into the script.

    Raises:
      NoScriptError: it is compared with a backend of the project.
    """
    context = failure.context
    found: dict[str, Any] = {
        name: getattr(context, name)
        for name, usual in _USUAL.items()
        if reads(failure.check, name) and _differs(getattr(context, name), usual)
    }
    if reads(failure.check, "others"):
        found |= _others(context, kernel)
    watched = [name for name in _WATCHES if getattr(context.settings, name)]
    if watched != list(_WATCHES):
        found["sanitize"] = watched or "none"
    return found


def _differs(value: Any, usual: Any) -> bool:
    return bool(value) if usual == () else value != usual


def _others(context: CheckContext, kernel: Any) -> dict[str, Any]:
    """What the kernel is compared with, as keyword arguments."""
    peers = {
        backend_name(each.backend, "the peer"): each for each in context.others if each.is_kernel
    }
    functions = {name: without_mesh(each.function)[0] for name, each in peers.items()}
    found: dict[str, Any] = {}
    if functions:
        alike = all(function is kernel for function in functions.values())
        found["peers"] = tuple(functions) if alike else functions
    implementations = {
        each.name: without_mesh(each.function)[0] for each in context.others if not each.is_kernel
    }
    return found | ({"implementations": implementations} if implementations else {})


# The text of a script that checks the call on which a check failed, by ``pytest_pallas.check``.


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
    """The script for a failure.

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
    text = _Text(Writer(), timed_out=error.timed_out)
    lines = list(text.check(session, failure))
    if text.writer.arrays:  # then all of them are better in the file
        text = _Text(Writer(most=0), timed_out=error.timed_out)
        lines = list(text.check(session, failure))
    if failure.check == "forward" and isinstance(error, MismatchError):
        lines += in_plain_jax(failure)
    return Script(
        "\n".join(
            [
                *_header(error, failure, test, replay, stored=bool(text.writer.arrays)),
                *text.imports(session, failure, "\n".join(lines)),
                *([f"sys.exit({'fill in ' + '; '.join(text.missing)!r})"] if text.missing else []),
                *lines,
                "",
            ]
        ),
        text.writer.arrays,
        tuple(text.missing),
    )


@dataclass
class _Text:
    """What is written of a failure, and what of it cannot be written."""

    writer: Writer
    missing: list[str] = field(default_factory=list[str])
    timed_out: bool = False

    def written(self, what: str, value: Any) -> str:
        """The expression for a value; ``None`` where there is none, which is noted."""
        try:
            return self.writer.write(value)
        except UnwritableError as problem:
            self.missing.append(f"{what}: {problem}")
            return "None"

    def check(self, session: Session, failure: Failure) -> Iterator[str]:
        """The call of ``pytest_pallas.check``.

        Raises:
          NoScriptError: the backend is one of the project.
        """
        context, arguments = failure.context, failure.context.arguments
        # A trace that did not end would not end here either.
        executed = context.backend if self.timed_out else ran_on(context)
        backend = backend_name(executed, "the backend")
        kernel, mesh = without_mesh(context.kernel)
        reference, _ = without_mesh(context.reference)
        yield f"kernel = {self.written('the kernel', kernel)}"
        words = ["kernel", "*args"]
        if reference is not None:
            yield f"reference = {self.written('the reference', reference)}"
            words.append("reference=reference")
        yield f"args = {self.written('the arguments', tuple(arguments.args))}"
        given: dict[str, Any] = {"options": arguments.options, "tuning": arguments.tuning}
        asks = any(
            getattr(context, each) and reads(failure.check, each)
            for each in ("relations", "raises")
        )
        if asks and arguments.recipe:
            words[1] = "call"  # their functions may read what was drawn
            given["recipe"] = self._writable(arguments.recipe)
        given = {name: dict(value) for name, value in given.items() if value}
        for name, value in given.items():
            yield f"{name} = {self.written(f'the {name}', value)}"
        if words[1] == "call":
            named = "".join(f", {name}={name}" for name in given)
            yield f"call = pytest_pallas.Arguments(args{named})"
        else:
            words += [f"{name}={name}" for name in given]
        words += [f'backend="{backend}"', f"checks={self._check(session, failure.check)}"]
        if context.arithmetic:
            words.append(f'arithmetic="{context.arithmetic}"')
        if mesh is not None:
            words.append(f"mesh={self.writer.mapping(mesh.shape)}")
        for name, value in promises_of(failure, kernel).items():
            words.append(f"{name}={self.written(f'{name}=', value)}")
        if getattr(kernel, "__name__", "") != failure.name:
            words.append(f'name="{failure.name}"')
        yield ""
        yield from _called("pytest_pallas.check", words)
        yield 'print("no failure")'

    def _check(self, session: Session, name: str) -> str:
        """The name of a check, or the expression for one of the project's."""
        if of_project(name):
            return self.written(f"the check {name}", session.checks[name])
        return f'"{name}"'

    def _writable(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Those that a script can hold."""
        found: dict[str, Any] = {}
        for name, value in values.items():
            with contextlib.suppress(UnwritableError):
                Writer().write(value)
                found[name] = value
        return found

    def imports(self, session: Session, failure: Failure, text: str) -> Iterator[str]:
        """Imports and settings: what decides devices comes before what may start JAX."""
        context, writer = failure.context, self.writer
        imports = {"import pytest_pallas", *writer.imports}
        folders = [folder for folder, _ in writer.modules.values() if folder]
        if folders or self.missing:
            imports.add("import sys")
        several = failure.check == "sharding" or context.devices > 1 or writer.meshes
        simulated = several and context.backend.kind != "hardware"
        if simulated:
            imports |= {"import os", "from pytest_pallas.backends.devices import simulate"}
        settings = list(_settings())
        for word, line in (
            ("functools", "import functools"),
            ("np", "import numpy as np"),
            ("jnp", "import jax.numpy as jnp"),
            ("jax", "import jax"),
        ):
            if re.search(rf"\b({word})\b", text):
                imports.add(line)
        if settings:
            imports.add("import jax")
        if writer.arrays:
            imports |= {"from pathlib import Path", "import numpy as np"}
        if any(not folder for folder, _ in writer.modules.values()):
            imports.add("from pytest_pallas.replay.parts import load")
        standard = {line for line in imports if line.split()[1] in sys.stdlib_module_names}
        for group in (standard, imports - standard):
            yield from sorted(group, key=lambda line: (not line.startswith("import"), line))
            yield from ("",) if group else ()
        if simulated:
            count = session.options.devices
            yield f"simulate({count}, os.environ, explicit=True)  # before JAX starts"
        yield from settings
        for folder in dict.fromkeys(folders):
            yield f"sys.path.insert(0, {quoted(folder)})"
        for name, (folder, file) in sorted(writer.modules.items()):
            variable = variable_name(name)
            if folder:
                yield f"import {name} as {variable}"
            else:
                yield f"{variable} = load({quoted(name)}, {quoted(file)})"
        if writer.arrays:
            yield 'STORED = np.load(Path(__file__).with_suffix(".npz"))'
        yield ""


def _called(function: str, words: Sequence[str]) -> Iterator[str]:
    """The lines of a call: one if it fits, else as many arguments on a line as fit."""
    line = f"{function}({', '.join(words)})"
    if len(line) <= 100 and "\n" not in line:
        yield line
        return
    yield f"{function}("
    line = ""
    for word in words:
        if "\n" in word or len(line) + len(word) > 88:
            yield from [f"    {line.rstrip()}"] if line else []
            line = ""
        if "\n" in word:
            yield from textwrap.indent(f"{word},", "    ").splitlines()
        else:
            line += f"{word}, "
    yield from [f"    {line.rstrip()}"] if line else []
    yield ")"


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


def _settings() -> Iterator[str]:
    """What of JAX's settings changes answers."""
    config: Any = jax.config
    if config.jax_enable_x64:
        yield 'jax.config.update("jax_enable_x64", True)'
    precision = config.jax_default_matmul_precision
    if precision is not None:
        yield f'jax.config.update("jax_default_matmul_precision", {precision!r})'
