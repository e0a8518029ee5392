"""Goldens: answers of kernels that are kept in a folder, and examples: calls in one file.

``Golden`` is one answer with the call it belongs to and where it came from; ``Store`` is the folder
of ``--pallas-golden-dir``. ``Example`` is a failing call for ``--pallas-replay`` on another
machine. Both are JSON beside arrays in safetensors (docs/goldens.md has the formats), and reading
one executes nothing of it. ``checks.golden`` decides what is kept and compared.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import threadpoolctl

from pallas_sim.chips import default_target
from pallas_sim.findings import Text
from pytest_pallas._version import __version__
from pytest_pallas.backends.protocol import Backend, label
from pytest_pallas.decoding import (
    AsWritten,
    Between,
    Count,
    DataError,
    Matching,
    Sized,
    decode,
    parse,
    replacing,
    shown,
)
from pytest_pallas.errors import GoldenError
from pytest_pallas.judge.tolerance import ProductPrecision
from pytest_pallas.replay.values import Array, call_of, dump, load, metadata_of, read

#: Version of the JSON form of goldens; see docs/goldens.md.
SCHEMA = 3

#: Version of the JSON form of examples.
EXAMPLE_SCHEMA = 1

#: A SHA-256.
Digest = Annotated[str, Matching("[0-9a-f]{64}", "a SHA-256")]

#: dtype and shape of an array.
type Kind = tuple[str, ArrayShape]

#: The shape of an array. A sample may be of an array that is too large for numpy.
type ArrayShape = Annotated[tuple[Count, ...], Sized(64)]

#: A call as ``values.write`` gives it. Its texts are arguments of a kernel.
type PlainCall = Annotated[Any, AsWritten()]


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where an answer came from. Equal origins give equal bits.

    Attributes:
      backend: label of the backend, such as ``"tpu-interpret:v6e"``.
      device: kind of the device, such as ``"TPU v6 lite"``; of the simulated one for interpreters.
      versions: of what decides the answer: jax, jaxlib, and the compiler of hardware or numpy.
      source: SHA-256 of the file that the kernel is in; "" if there is none.
      processor: of the host, as ``processor`` names it, for a simulator or interpreter; "" for
        hardware.
    """

    backend: str
    device: str
    versions: Mapping[str, str]
    source: str
    processor: str = ""

    def __str__(self) -> str:
        """Describe it in messages."""
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return f"{self.backend} ({self.device}; {versions})"


@dataclass(frozen=True, kw_only=True)
class Output:
    """One array of an answer.

    Attributes:
      path: in the pytree of outputs; "" if it is the only one.
      dtype: name of its dtype.
      shape: its shape.
      digest: SHA-256 of all of it.
      sample: the places that were kept of an array that is too large, evenly spaced over its
        elements; 0 if all were.
    """

    path: str
    dtype: str
    shape: ArrayShape
    digest: Digest
    sample: Annotated[int, Between(0, 2**31)] = 0


@dataclass(frozen=True, kw_only=True)
class GoldenCall:
    """The inputs of an answer.

    Attributes:
      digest: SHA-256 of arguments, options and tuning, arrays included.
      plain: those as ``values.write`` gives them.
      kinds: dtype and shape of each array in ``plain``; empty if arrays were too large to keep.
      complete: whether the call can be made from this; else it has to be drawn again.
      seed: of the draws.
      examples: how many examples a check drew.
      drawn: a description of what was drawn.
    """

    digest: Digest
    plain: PlainCall
    kinds: tuple[Kind, ...]
    complete: bool
    seed: int
    examples: Annotated[int, Between(0, 2**31)]
    drawn: Text = ""

    @property
    def names(self) -> Sequence[str]:
        """The names of its arrays."""
        return [f"in{number}" for number in range(len(self.kinds))]


@dataclass(frozen=True, kw_only=True)
class Golden:
    """One answer.

    Attributes:
      test: node id of the test, without the backend of a parametrised one.
      kernel: name of the kernel.
      check: name of the check.
      mesh: axis name to size, or empty.
      origin: where the answer came from.
      call: the inputs.
      outputs: the arrays of the answer.
      arrays: SHA-256 of the file of each array: of the call, and then of the answer.
      products: the precision of the kernel's products of float32; None for float32.
    """

    test: str
    kernel: str
    check: str
    mesh: Mapping[str, Count]
    origin: Origin
    call: GoldenCall
    outputs: tuple[Output, ...]
    arrays: tuple[Digest, ...] = ()
    products: ProductPrecision | None = None

    @property
    def question(self) -> str:
        """What it answers: equal for the answers of all backends to one call."""
        return question_of(self.kernel, self.check, self.mesh, self.call.digest)

    @property
    def name(self) -> str:
        """Its place in a store: one for each question, backend and kind of device."""
        text = json.dumps([self.question, self.origin.backend, self.origin.device])
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        """Describe it in messages."""
        mesh = "".join(f"-{axis}{size}" for axis, size in self.mesh.items())
        return f"{self.kernel} {self.check}{mesh} on {self.origin.backend}: {self.call.drawn}"


def question_of(kernel: str, check: str, mesh: Mapping[str, int], digest: str) -> str:
    """Return a name for a check of a kernel on a mesh for one call."""
    text = json.dumps([kernel, check, sorted(mesh.items()), digest])
    return hashlib.sha256(text.encode()).hexdigest()


def to_json(golden: Golden) -> dict[str, Any]:
    """Return a golden as plain JSON values."""
    return {"schema": SCHEMA, **dataclasses.asdict(golden)}


def from_json(plain: Any) -> Golden:
    """Return the golden that ``to_json`` wrote.

    Raises:
      GoldenError: it is no golden, or of a newer version of pytest-pallas.
    """
    content = without_schema(plain, SCHEMA, "golden")
    try:
        return decode(Golden, content)
    except DataError as error:
        raise GoldenError(f"this is no golden of pytest-pallas: {error}") from None


def without_schema(plain: Any, schema: int, what: str) -> dict[str, Any]:
    """Return the fields of a file, which must have this schema.

    Raises:
      GoldenError: it is of another version, or no file of pytest-pallas.
    """
    if not isinstance(plain, dict) or not isinstance(plain.get("schema"), int):
        raise GoldenError(f"this is no {what} of pytest-pallas")
    if plain["schema"] != schema:
        raise GoldenError(
            f"it has the schema {plain['schema']!r:.20}, and this pytest-pallas reads {schema}; "
            f"install the version that wrote it{', or record again' if what == 'golden' else ''}"
        )
    return {name: value for name, value in plain.items() if name != "schema"}


# Where answers come from.


def origin_of(backend: Backend, kernel: Callable[..., Any]) -> Origin:
    """Return where the answers of a kernel on a backend come from."""
    device, compiler = _device(backend)
    versions = {"jax": metadata.version("jax"), "jaxlib": metadata.version("jaxlib")}
    if compiler:
        versions["compiler"] = compiler
    else:
        versions["pytest-pallas"] = __version__  # it simulates, and mends interpreters
        versions["numpy"] = np.__version__
    return Origin(
        backend=label(backend),
        device=device,
        versions=versions,
        source=source_of(kernel),
        processor="" if compiler else processor(),
    )


@functools.cache
def processor() -> str:
    """Return the instructions of this processor that decide the bits of XLA, numpy and BLAS.

    XLA contracts ``a * b + c`` of float16 to one rounding where the processor has AVX512-FP16, and
    OpenBLAS has kernels for families of processors, which add in different orders.
    """
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""  # a system without /proc
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    flags = sorted(filter(_ARITHMETIC.fullmatch, line[1].split())) if line else []
    # numpy's BLAS is loaded first; that of scipy, if it is loaded, chooses likewise.
    blas = next((x for x in threadpoolctl.threadpool_info() if x["user_api"] == "blas"), {})
    kernels = blas.get("architecture")
    return " ".join(
        [platform.machine(), *flags, *([f"{blas['internal_api']}-{kernels}"] if kernels else [])]
    )


#: The flags of a processor, as Linux names them, that stand for arithmetic on floats. AVX512's
#: parts for integers and memory are left out; ``asimd`` and ``sve`` are those of ARM.
_ARITHMETIC = re.compile(r"fma|avx2|avx512(f|vl)|\w+_(fp|bf)16|amx_tile|asimdhp|bf16|sve2?")


def source_of(kernel: Callable[..., Any]) -> str:
    """Return the SHA-256 of the file that a kernel is in, or "" if it is in none."""
    while isinstance(kernel, functools.partial):
        kernel = kernel.func
    try:
        path = inspect.getsourcefile(inspect.unwrap(kernel))
        return hashlib.sha256(Path(path or "").read_bytes()).hexdigest()
    except (TypeError, OSError):
        return ""


def _device(backend: Backend) -> tuple[str, str]:
    """Return the kind of device, and the version of what compiles for it."""
    if backend.kind == "hardware":
        import jax

        device = jax.local_devices(backend=backend.platform)[0]
        return device.device_kind, " ".join(device.client.platform_version.split())
    target = backend.target or default_target(backend.platform)
    return target.device_kind if target else "cpu", ""


# Examples: a safetensors file with the arrays of the call, and as metadata a JSON of the rest.

#: The name of the JSON in the metadata.
_KEY = "pytest-pallas example"

#: The largest file that is read.
_MOST = 2**34


@dataclass(frozen=True, kw_only=True)
class Example:
    """A call that a check was asked about.

    Attributes:
      test: of a test function the node id without parameters; "" for a spec.
      variant: the parameters in that node id, without the backend.
      suite: of a spec, what ``--pallas-suite`` said.
      kernel: name of the kernel.
      check: name of the check.
      mesh: axis name to size, or empty.
      plain: arguments, options and tuning, as ``values.write`` gives them.
      kinds: dtype and shape of each array in ``plain``.
      backend: label of the backend on which it failed.
      witness: the order in which it failed, as ``--pallas-witness`` takes it; "" for the plain one.
      message: what was said there, in its first line.
      versions: of what ran there.
    """

    test: str = ""
    variant: str = ""
    suite: tuple[str, ...] = ()
    kernel: str
    check: str
    mesh: Mapping[str, Count] = field(default_factory=dict[str, int])
    plain: PlainCall
    kinds: tuple[Kind, ...]
    backend: str = ""
    witness: str = ""
    message: Text = ""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class LoadedExample:
    """An example, and its call: positional arguments, options and tuning."""

    example: Example
    call: tuple[tuple[Any, ...], Mapping[str, Any], Mapping[str, Any]]


def content_of(example: Example, arrays: Sequence[Array]) -> bytes:
    """Return the content of an example's file.

    Raises:
      OptionError: safetensors is not installed.
    """
    plain = {"schema": EXAMPLE_SCHEMA, **dataclasses.asdict(example)}
    named = {f"in{number}": array for number, array in enumerate(arrays)}
    return dump(named, {_KEY: json.dumps(plain)})


def load_example(path: Path) -> LoadedExample:
    """Load the example in a file. Nothing in it is executed.

    Raises:
      GoldenError: there is no such file, or it is no example, or damaged, or newer.
      OptionError: safetensors is not installed.
    """
    name = shown(str(path))
    try:
        if not path.is_file() and path.exists():
            raise GoldenError("this is no file")
        if path.stat().st_size > _MOST:
            raise GoldenError("this is too large for an example")
        return _loaded(path.read_bytes())
    except OSError as error:
        raise GoldenError(f"{name}: {error.strerror}") from None
    except (GoldenError, ValueError) as error:  # a path with a NUL
        raise GoldenError(f"{name}: {error}") from None


def _loaded(content: bytes) -> LoadedExample:
    text = metadata_of(content).get(_KEY)
    if text is None:
        raise GoldenError("this is no example of pytest-pallas")
    try:
        example: Example = decode(Example, without_schema(parse(text), EXAMPLE_SCHEMA, "example"))
    except DataError as error:
        raise GoldenError(f"this is no example of pytest-pallas: {error}") from None
    named = {f"in{number}": kind for number, kind in enumerate(example.kinds)}
    arrays = load(content, named)
    value = read(example.plain, [arrays[name] for name in named])
    return LoadedExample(example, call_of(value))


# The folder of ``--pallas-golden-dir``: a manifest a golden, and the arrays by their content.
#
#     goldens/<name>.json             one answer, without its arrays
#     tensors/<sha256>.safetensors    an array, which several goldens may share
#
# Every file is written under another name and renamed, arrays before the manifest that names them.
# So processes that write at the same time, or die in the middle, leave whole files. Names of files
# are digests, so no manifest leads out of the folder.

_NAME = re.compile(r"[0-9a-f]{64}\.json")

#: What a manifest may have; one is a few KiB.
_MOST_ENTRIES = 16 * 2**20


@dataclass(frozen=True)
class Store:
    """Goldens in a folder.

    Attributes:
      folder: made at the first write.
    """

    folder: Path

    def goldens(self) -> Iterator[Golden]:
        """Yield all goldens, by name.

        Raises:
          GoldenError: a file is damaged or foreign; the message says which.
        """
        folder = self.folder / "goldens"
        if not folder.is_dir():
            return
        for path in sorted(folder.iterdir()):
            if path.name.startswith("."):
                continue  # of somebody who is writing, or was
            if not _NAME.fullmatch(path.name):
                raise GoldenError(f"{path}: this is no golden of pytest-pallas; move it elsewhere")
            golden = self._read(path)
            if golden.name != path.stem:
                raise GoldenError(f"{path}: its content was changed: {_AGAIN}")
            yield golden

    def get(self, name: str) -> Golden | None:
        """Return the golden of this name, if there is one.

        Raises:
          GoldenError: its file is damaged.
        """
        path = self.folder / "goldens" / f"{name}.json"
        return self._read(path) if path.is_file() else None

    def put(self, golden: Golden, arrays: Mapping[str, Array]) -> Golden:
        """Write a golden and its arrays, under the name of their content.

        Raises:
          OSError: the folder cannot be written to.
        """
        names = (*golden.call.names, *(f"out{number}" for number in range(len(golden.outputs))))
        files = tuple(self._put(arrays[name]) for name in names)
        golden = dataclasses.replace(golden, arrays=files)
        text = json.dumps(to_json(golden), indent=1, sort_keys=True) + "\n"
        write_file(self.folder / "goldens" / f"{golden.name}.json", text.encode())
        return golden

    def _put(self, array: Array) -> str:
        """Write an array, unless it is there; return the SHA-256 of its file."""
        content = dump({_ARRAY: array}, compressed=True)
        name = hashlib.sha256(content).hexdigest()
        path = self.folder / "tensors" / f"{name}.safetensors"
        if not path.is_file():
            write_file(path, content)
        return name

    def outputs(self, golden: Golden) -> dict[str, Array]:
        """Load the arrays of an answer by path; of a sampled one, its sample.

        Raises:
          GoldenError: the file is missing or damaged.
        """
        kinds = [
            (output.dtype, (output.sample,) if output.sample else output.shape)
            for output in golden.outputs
        ]
        arrays = self._arrays(golden, len(golden.call.kinds), kinds)
        return {output.path: array for output, array in zip(golden.outputs, arrays, strict=True)}

    def inputs(self, golden: Golden) -> list[Array]:
        """Load the arrays of the call.

        Raises:
          GoldenError: the file is missing or damaged.
        """
        return self._arrays(golden, 0, golden.call.kinds)

    def _arrays(self, golden: Golden, first: int, kinds: Sequence[Kind]) -> list[Array]:
        """Load arrays of a golden, from number ``first`` on."""
        if first + len(kinds) > len(golden.arrays):
            raise GoldenError(f"an array of {golden} is missing: {_AGAIN}")
        files = golden.arrays[first:]
        return [self._load(golden, *pair) for pair in zip(files, kinds, strict=False)]

    def _load(self, golden: Golden, file: str, kind: Kind) -> Array:
        path = self.folder / "tensors" / f"{file}.safetensors"
        if not path.exists():
            raise GoldenError(f"{path}: the arrays of {golden} are missing: {_AGAIN}")
        _require_file(path)
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != file:
            raise GoldenError(f"{path}: its content was changed, or is not all there: {_AGAIN}")
        try:
            return load(content, {_ARRAY: kind})[_ARRAY]
        except GoldenError as error:
            raise GoldenError(f"{path}: {error}") from None

    def _read(self, path: Path) -> Golden:
        _require_file(path)
        try:
            if path.stat().st_size > _MOST_ENTRIES:
                raise DataError("is too large for a manifest")
            return from_json(parse(path.read_bytes()))
        except DataError as error:
            raise GoldenError(f"{path}: this {error}; {_AGAIN}") from None
        except GoldenError as error:
            raise GoldenError(f"{path}: {error}") from None


_AGAIN = "delete it, and record again"

#: The name of the array in its file.
_ARRAY = "array"


def _require_file(path: Path) -> None:
    """Refuse links, which lead out of the folder, and devices, which have no end."""
    if path.is_symlink() or not path.is_file():
        raise GoldenError(f"{path}: this is no file of its own; remove it")


def write_file(path: Path, content: bytes) -> None:
    """Write a file in one step, in a folder that is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(content)
