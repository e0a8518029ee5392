"""How a script forces the backend on which a check failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_pallas.backends import Backend, chip_of
from pytest_pallas.backends.interpreters import Interpreter
from pytest_pallas.backends.simulators import Simulator
from pytest_pallas.backends.variations import Schedule
from pytest_pallas.scripts.literals import Writer


@dataclass(frozen=True)
class Place:
    """A backend in a script.

    Attributes:
      text: the definition of ``backend()``, which makes a context; see ``parts.Case``.
      environment: variables to set before jax is imported.
      imports: statements that ``text`` needs.
    """

    text: str
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    imports: tuple[str, ...] = ()

    def beside(self, other: Place, name: str) -> Place:
        """This backend and another one of the same environment, which is called ``name``."""
        text = other.text.replace("def backend()", f"def {name}()", 1)
        return replace(
            self,
            text=self.text + text,
            imports=tuple(dict.fromkeys((*self.imports, *other.imports))),
        )


_ALIASES = {
    "jax.experimental.pallas.tpu": "pltpu",
    "jax.experimental.pallas.mosaic_gpu": "plgpu",
}

_SHARDING = "from jax.sharding import AbstractDevice, AbstractMesh"

_DEVICE = "device = AbstractDevice(device_kind={kind!r}, num_cores=1, platform={platform!r})"
_MESH = "jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device))"


def platform_of(backend: Backend) -> str:
    """The platform of the devices that a backend runs on."""
    return backend.platform if backend.kind == "hardware" else "cpu"


def place_of(backend: Backend, *, schedule: Schedule | None = None) -> Place:
    """How to force a backend.

    Args:
      backend: one of this package's, or any that runs on hardware.
      schedule: in which order a simulator works.
    """
    if isinstance(backend, Simulator):
        return _simulator(backend, schedule or Schedule())
    if isinstance(backend, Interpreter):
        return _interpreter(backend, backend.parameters)
    if backend.kind == "compiling":
        return _compiler(backend)
    lines = [
        "@contextlib.contextmanager",
        "def backend() -> Any:",
        '    """The accelerator."""',
        f'    with jax.default_device(jax.devices("{backend.platform}")[0]):',
        "        yield",
    ]
    return Place("\n".join([*lines, "\n"]))


def _simulator(backend: Simulator, schedule: Schedule) -> Place:
    chip = backend.chip
    machine = f"target={chip.name!r}, seed={schedule.seed}, cores={schedule.cores}"
    lines = [
        "@contextlib.contextmanager",
        "def backend() -> Any:",
        f'    """{backend.name}, as in the failing run, for a {chip.device_kind}."""',
        "    " + _DEVICE.format(kind=chip.device_kind, platform=chip.platform),
        f'    with jax.default_device(jax.devices("cpu")[0]), {_MESH}:',
        f"        yield functools.partial(simulated, {machine})",
    ]
    errors = "from pytest_pallas.errors import DmaError, RaceError"
    imports = (
        errors,
        "from pytest_pallas.findings import OF_TRANSFERS",
        "from pytest_pallas.simulator import Machine, simulate",
        _SHARDING,
    )
    return Place("\n".join([*lines, "\n"]), {"JAX_PLATFORMS": "cpu"}, imports)


def _interpreter(backend: Backend, parameters: Any) -> Place:
    target = chip_of(backend)
    contexts = ['jax.default_device(jax.devices("cpu")[0])']
    if parameters is not True:
        contexts.append("quiet_callbacks()")
    words = Writer().write(parameters)
    for module, alias in _ALIASES.items():
        words = words.replace(f"{module}.", f"{alias}.")
    contexts += [f"pltpu.force_tpu_interpret_mode({words})", _MESH]
    lines = [
        "@contextlib.contextmanager",
        "def backend() -> Any:",
        f'    """{backend.name}, as in the failing run, for a {target.device_kind}."""',
        "    " + _DEVICE.format(kind=target.device_kind, platform=target.platform),
        "    with (",
        *(f"        {context}," for context in contexts),
        "    ):",
        "        yield",
    ]
    imports = [
        f"from {module.rpartition('.')[0]} import {module.rpartition('.')[2]} as {alias}"
        for module, alias in _ALIASES.items()
        if alias == "pltpu" or f"{alias}." in words
    ]
    return Place("\n".join([*lines, "\n"]), {"JAX_PLATFORMS": "cpu"}, (*imports, _SHARDING))


def _compiler(backend: Backend) -> Place:
    target = chip_of(backend)
    lines = [
        "def backend() -> Any:",
        f'    """For kernels that ask: the device is a {target.device_kind}."""',
        "    " + _DEVICE.format(kind=target.device_kind, platform=target.platform),
        f"    return {_MESH}",
    ]
    environment = {"JAX_PLATFORMS": "cpu"}
    if target.platform == "tpu":
        environment |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    return Place("\n".join([*lines, "\n"]), environment, (_SHARDING,))
