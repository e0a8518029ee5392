"""Which public names of Pallas the reference kernels use, read off their source."""

from __future__ import annotations

import ast
import functools
import importlib
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reference_kernels

ROOT = Path(reference_kernels.__file__).parent
PAGE = ROOT.parent / "docs/kernels/api.md"

#: Modules by what everybody calls them.
MODULES = {
    "pl": "jax.experimental.pallas",
    "pltpu": "jax.experimental.pallas.tpu",
    "plsc": "jax.experimental.pallas.tpu_sc",
    "plgpu": "jax.experimental.pallas.mosaic_gpu",
}

_ELSEWHERE = "says where a kernel runs, which is not a kernel's business: the backend does"

#: Names that are not for kernels, but for who runs, compiles or embeds them; and why.
OUTSIDE: Mapping[str, Mapping[str, str]] = {
    "pl": {
        "enable_debug_checks": "a setting of the caller; see the tests of `debug_probe`",
        "enable_poison_buffers": "a setting of the caller",
        "lower_as_mlir": "looks at a lowered function; `--pallas-dump` does",
        "pallas_call_p": "the primitive behind `pl.pallas_call`",
        "pallas_export_experimental": "exports a lowered function; the check `export` does",
    },
    "pltpu": {
        "InterpretParams": _ELSEWHERE,
        "LoweringException": "raised by the lowering",
        "force_tpu_interpret_mode": _ELSEWHERE,
        "reset_tpu_interpret_mode_state": _ELSEWHERE,
        "set_tpu_interpret_mode": _ELSEWHERE,
    },
    "plsc": {"SparseCorePushStreamWarning": "a warning of the lowering"},
    "plgpu": {
        "InterpretGPUParams": _ELSEWHERE,
        "as_torch_kernel": "makes a function of PyTorch's tensors of a call, whatever the kernel; "
        "it needs PyTorch and a GPU",
        "force_gpu_interpret_mode": _ELSEWHERE,
        "set_gpu_interpret_mode": _ELSEWHERE,
    },
}

#: Names that a kernel could use and none does, and why.
UNUSED: Mapping[str, Mapping[str, str]] = {
    "pl": {
        "CompilerParams": "the base class of `pltpu.CompilerParams`",
        "broadcast_to": "of Triton: Mosaic refuses it; `jnp.broadcast_to` is what it recommends",
        "empty": "another name of `jax.lax.empty`; kernels use `pl.empty_like`",
    },
    "pltpu": {
        "CMEM": "refused as scratch and as an operand, on v4 too",
        "GridDimensionSemantics": "the class of `pltpu.PARALLEL` and `pltpu.ARBITRARY`",
        "PipelineStep": "given to a pipeline's body only on a private request",
        "SUBCORE_PARALLEL": "what a `plsc.VectorSubcoreMesh` says of its subcores; pipelines take "
        "`pltpu.PARALLEL`",
    },
    "plsc": {
        "slice_subcore_vmem_from_shared": "compiled only for buffers with rows of 128 elements, 8 "
        "for each subcore, which are no register of tpu7x; and no interpreter has it",
    },
    "plgpu": {
        "MemorySpace": "the class of `plgpu.GMEM`, `plgpu.SMEM` and `plgpu.TMEM`",
        "PeerMemRef": "what `plgpu.remote_ref` puts on a reference",
        "REGS": "where accumulators lie, which `plgpu.WGMMAAccumulatorRef` asks for",
    },
}


def share() -> tuple[int, int, int]:
    """How many public names there are, how many of them are for kernels, and how many are used."""
    names = [
        (short, name)
        for short, module in MODULES.items()
        for name in public_names(importlib.import_module(module))
    ]
    inside = [(short, name) for short, name in names if name not in OUTSIDE[short]]
    used = {short: users(short) for short in MODULES}
    return len(names), len(inside), sum(name in used[short] for short, name in inside)


def public_names(module: Any) -> list[str]:
    """Names that a module offers: not private, not a module, not deprecated."""
    deprecated = getattr(module, "_deprecations", {})
    return [
        name
        for name in dir(module)
        if not name.startswith("_")
        and name not in deprecated
        and not isinstance(getattr(module, name), types.ModuleType)
    ]


@functools.cache
def users(short: str) -> dict[str, list[str]]:
    """Modules of reference kernels by the names of a Pallas module that their code uses."""
    found: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        if path.stem.endswith("_spec"):
            continue
        place = path.relative_to(ROOT).with_suffix("").as_posix()
        for name in sorted(set(_attributes(_read(path), MODULES[short]))):
            found.setdefault(name, []).append(place)
    return found


@dataclass(frozen=True)
class _Read:
    """What a file reads of modules, by names only: trees of all files take seconds to collect.

    Attributes:
      imports: module, name and alias of each ``from module import name as alias``.
      attributes: of ``base.name`` both, where the base is a name.
    """

    imports: tuple[tuple[str, str, str], ...]
    attributes: tuple[tuple[str, str], ...]


@functools.cache
def _read(path: Path) -> _Read:
    return _parsed(path.read_text())


def _parsed(source: str) -> _Read:
    imports: list[tuple[str, str, str]] = []
    attributes: list[tuple[str, str]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            imports += [
                (str(node.module), each.name, each.asname or each.name) for each in node.names
            ]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            attributes.append((node.value.id, node.attr))
    return _Read(tuple(imports), tuple(attributes))


def _attributes(read: _Read, module: str) -> Iterator[str]:
    """What is read from an import of ``module``, under whatever name."""
    package, _, last = module.rpartition(".")
    aliases = {alias for source, name, alias in read.imports if source == package and name == last}
    yield from (name for base, name in read.attributes if base in aliases)
    yield from (name for source, name, _ in read.imports if source == module)


def table(short: str, module: Any) -> str:
    """The names of a module with their users, as Markdown."""
    used = users(short)
    lines = ["| name | used by |", "| --- | --- |"]
    for name in public_names(module):
        if name in used:
            shown = ", ".join(f"`{place}`" for place in used[name][:4])
            more = len(used[name]) - 4
            text = f"{shown} and {more} more" if more > 0 else shown
        else:
            text = {**OUTSIDE[short], **UNUSED[short]}.get(name, "**nobody**")
        lines.append(f"| `{short}.{name}` | {text} |")
    return "\n".join(lines) + "\n"
