"""Kernels can be copied: they need jax, numpy and a few files, and not what verifies them."""

from __future__ import annotations

import ast
import functools
import inspect
import math
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pallas_test_support import copied_kernels
from pallas_test_support.bare_python import run_bare

import reference_kernels
from pallas_sim.chips import TARGETS, Target, attributes
from pytest_pallas.backends.devices import make_mesh
from pytest_pallas.draw.arguments import as_arguments
from pytest_pallas.draw.examples import ExampleSource
from pytest_pallas.draw.meshes import sizes_of
from pytest_pallas.run.collection import suite
from pytest_pallas.spec import KernelSpec

ROOT = Path(reference_kernels.__file__).parents[1]
PACKAGE = ROOT / "reference_kernels"

#: The modules of kernels: those that have specs beside them.
KERNELS = {
    path.relative_to(PACKAGE).with_suffix("").as_posix(): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.with_name(f"{path.stem}_spec.py").exists() and not path.name.startswith("_")
}

#: Kernels that somebody learns from first, and how many files each takes along.
SIMPLE = {
    "basics/add_vectors": 1,
    "basics/iota": 1,
    "dma/dma_copy": 1,
    "dma/double_buffer": 1,
    "matmul/matmul": 2,
    "matmul/matmul_naive": 1,
    "mosaic_gpu/tma_copy_add": 1,
    "portable/add": 2,
    "reductions/layer_norm": 2,
    "reductions/rms_norm": 2,
    "reductions/softmax": 1,
}


def modules_of(path: Path) -> Iterator[str]:
    """What a file imports, wherever it stands in it; of a package, the module that is asked for."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            module = str(node.module)
            if (ROOT / module.replace(".", "/")).is_dir():
                yield from (f"{module}.{alias.name}" for alias in node.names)
            else:
                yield module


@functools.cache
def needed(path: Path) -> frozenset[Path]:
    """The files of reference kernels that a file cannot do without."""
    found: set[Path] = set()
    new = [path]
    while new:
        for module in modules_of(new.pop()):
            if module.startswith("reference_kernels."):
                file = (ROOT / module.replace(".", "/")).with_suffix(".py")
                if file not in found:
                    found.add(file)
                    new.append(file)
    return frozenset(found)


def test_every_spec_is_beside_its_kernel() -> None:
    """So that ``KERNELS`` are all of them."""
    assert len(KERNELS) > 100
    for spec in suite("reference_kernels").specs():
        assert isinstance(spec, KernelSpec), spec
        file = Path(spec.file)
        assert file.with_name(f"{file.stem.removesuffix('_spec')}.py") in KERNELS.values(), file
        for function in kernels_of(spec):
            assert not module_of(function).endswith("_spec"), f"{spec.name} has its kernel there"
        assert not module_of(spec.reference).endswith("_spec"), f"{spec.name}: its reference"


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_imports_neither_hypothesis_nor_the_plugin(name: str) -> None:
    path = KERNELS[name]
    for file in (path, *needed(path)):
        packages = {module.partition(".")[0] for module in modules_of(file)}
        assert not packages & {"hypothesis", "pytest", "pytest_pallas"}, file
        assert not file.stem.endswith("_spec")


@pytest.mark.parametrize("name", SIMPLE)
def test_a_simple_kernel_takes_few_files_along(name: str) -> None:
    assert len(needed(KERNELS[name])) <= SIMPLE[name], sorted(needed(KERNELS[name]))


def kernels_of(spec: KernelSpec) -> tuple[Callable[..., Any], ...]:
    return tuple(spec.kernel.values()) if isinstance(spec.kernel, dict) else (spec.kernel,)


def module_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(inspect.unwrap(function).__module__)


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each kernel's own, with its files and what to do with them."""
    folder = tmp_path_factory.mktemp("copies")
    specs: dict[Path, KernelSpec] = {}
    for spec in suite("reference_kernels").specs():
        assert isinstance(spec, KernelSpec), spec
        file = Path(spec.file)
        kernel = file.with_name(f"{file.stem.removesuffix('_spec')}.py")
        specs.setdefault(kernel, spec)
    for name, path in KERNELS.items():
        copy = folder / f"copy-{name.replace('/', '-')}"
        for file in (path, *needed(path)):
            place = copy / file.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place)
        jobs: list[tuple[str, bytes]] = []
        # Tracing all of them takes half a minute.
        if name in SIMPLE:
            jobs.append(("trace", pickle.dumps(traced(specs[path]))))
            if specs[path].claims("tpu-interpret"):
                jobs.append(("run", pickle.dumps(ran(specs[path]))))
        job = (f"reference_kernels.{name.replace('/', '.')}", jobs)
        (copy / "job.pickle").write_bytes(pickle.dumps(job))
    return folder


def traced(spec: KernelSpec) -> tuple[Any, ...]:
    """A typical call, as ``copied_kernels.trace`` takes it."""
    meshes = [sizes for axes in spec.mesh_axes for sizes in sizes_of(axes)]
    few = [sizes for sizes in meshes if 1 < math.prod(sizes.values()) <= 4]
    axes = dict(few[0]) if few else {}
    typical = spec.typical(make_mesh(axes, "cpu")) if callable(spec.typical) else spec.typical
    call = as_arguments(typical[0])
    chip = chip_of(spec)
    facts = attributes(chip.name) if chip.platform == "gpu" else {}
    options = {**call.options, **call.tuning}
    return kernels_of(spec)[0], call.args, options, chip.device_kind, facts, axes


def chip_of(spec: KernelSpec) -> Target:
    """A chip that a kernel runs on, one of a single core before others."""
    chips = sorted(TARGETS.values(), key=lambda chip: (chip.cores, chip.name != "v6e"))
    backends = ("{}-sim:{}", "{}-compile:{}")
    return next(
        chip
        for chip in chips
        if any(spec.claims(backend.format(chip.platform, chip.name)) for backend in backends)
    )


def ran(spec: KernelSpec) -> tuple[Any, ...]:
    """A drawn call, as ``copied_kernels.run`` takes it."""
    [drawn] = ExampleSource(spec.inputs).choose(0, 1).values()
    call = as_arguments(drawn)
    return kernels_of(spec)[0], spec.reference, tuple(call.args), call.options, call.tuning


def test_copies_run_where_neither_hypothesis_nor_the_plugin_is(
    copies: Path, tmp_path: Path
) -> None:
    script = copies / "copied_kernels.py"
    shutil.copy(Path(copied_kernels.__file__), script)
    [ended] = run_bare([script], tmp_path)
    assert ended.status == 0, ended.output
