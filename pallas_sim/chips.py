"""The chips that a backend can stand for: what they have, and whether a kernel fits into it.

TPUs and GPUs have a class each, and ``TARGETS`` the names of both. Between them is how the tensor
cores of a GPU add products, by generation; at the end, how much memory arrays take, and what a
kernel takes too much of (``Excess``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from pallas_sim.errors import DeviceError, OptionError
from pallas_sim.findings import Finding

# What TPUs have: cores, memory of a kernel, and the topologies to compile for.


_MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Tpu:
    """A TPU, as compilers, kernels and the simulator know it.

    Attributes:
      device_kind: what ``jax.Device.device_kind`` says; JAX must know it.
      cores: TensorCores that a kernel sees as one device (2 only where they are fused: v4, v5p).
      vmem: bytes of VMEM that a core has.
      vmem_limit: bytes of it that one kernel may use unless it says ``vmem_limit_bytes``.
      smem: bytes of SMEM that a core has; the compiler takes a few hundred of them.
      torus_dims: dims of the interconnect: a torus of three, or a mesh of two.
      devices: that JAX shows for one chip in the topologies of libtpu.
      device_cores: TensorCores of such a device.
      device_bytes: bytes of HBM that a program may use on such a device; 0 if it is not known.
    """

    device_kind: str
    cores: int = 1
    vmem: int
    vmem_limit: int
    smem: int = _MIB
    torus_dims: int
    devices: int = 1
    device_cores: int = 1
    device_bytes: int = 0


#: Dims of the interconnect are of Google's data sheets. Memory is measured with libtpu 0.0.51, HBM
#: with 0.0.50.1: the largest windows, scratch and arrays that compile, by bisection, and the limits
#: that it names where it rejects. So are devices: v4 and tpu7x have two TensorCores with a device
#: each; v5p's two are fused into one.
TPUS: dict[str, Tpu] = {
    "v4": Tpu(
        device_kind="TPU v4",
        cores=2,
        vmem=16 * _MIB,
        vmem_limit=16 * _MIB,
        torus_dims=3,
        devices=2,
        device_bytes=15614 * _MIB,
    ),
    "v5e": Tpu(
        device_kind="TPU v5 lite",
        vmem=128 * _MIB,
        vmem_limit=16 * _MIB,
        torus_dims=2,
        device_bytes=16124 * _MIB,
    ),
    "v5p": Tpu(
        device_kind="TPU v5",
        cores=2,
        vmem=64 * _MIB,
        vmem_limit=16 * _MIB,
        torus_dims=3,
        device_cores=2,
        device_bytes=98024 * _MIB,
    ),
    "v6e": Tpu(
        device_kind="TPU v6 lite",
        vmem=128 * _MIB,
        vmem_limit=32 * _MIB,
        torus_dims=2,
        device_bytes=31990 * _MIB,
    ),
    "tpu7x": Tpu(
        device_kind="TPU7x",
        vmem=64 * _MIB,
        vmem_limit=32 * _MIB,
        torus_dims=3,
        devices=2,
        device_bytes=97010 * _MIB,
    ),
}


# How tensor cores add products: the bits that their sums keep, by chip generation.
#
# An instruction adds its products in groups. In each group, the accumulator and the products are
# truncated to multiples of one unit, which the largest exponent among them decides; they are added
# exactly, and the sum is truncated to the bits of the accumulator.
#
# - Compute capability 9 was compared with an H200: 610,000 sums, no wrong bit (docs/simulator.md).
# - Capabilities 8 and 10 are published measurements, which were not compared with a chip here: Xie,
#   Wang, Yang and Yang, "MMA-Sim: Bit-Accurate Reference Model of Tensor Cores and Matrix Cores",
#   arXiv:2511.10909.


@dataclass(frozen=True)
class Accumulation:
    """How one instruction adds products.

    Attributes:
      step: products that are added at a time.
      fraction_bits: bits that an addend keeps below the largest exponent of its group.
      sum_bits: bits that a sum keeps below its own exponent: 23 is all of float32.
      order: in which order it takes so many products; () for that of the operands.
      operands: dtype that its operands are converted to before; "" for none.
      float16: whether sums of float16 are known: all bits of a step are kept, and rounded once.
    """

    step: int
    fraction_bits: int
    sum_bits: int = 23
    order: tuple[int, ...] = ()
    operands: str = ""
    float16: bool = False

    @property
    def is_narrow(self) -> bool:
        """Whether a sum has fewer bits than float32."""
        return self.sum_bits < 23


#: By instruction and operands; ``"tf32"`` is float32 that Triton rounds to 10 bits before.
Accumulations = Mapping[tuple[str, str], Accumulation]


def accumulation_of(
    accumulations: Accumulations, instruction: str, lhs: str, rhs: str
) -> Accumulation | None:
    """Return how an instruction adds products of these dtypes; None if it is not known."""
    known = accumulations.get((instruction, lhs))
    return known if accumulations.get((instruction, rhs)) == known else None


def _of(instruction: str, names: str, accumulation: Accumulation) -> Accumulations:
    return {(instruction, name): accumulation for name in names.split()}


_SIXTEEN = "bfloat16 float16"
_EIGHT = "float8_e4m3fn float8_e5m2"

#: Triton gives a thread 4 elements of 8 bits in a row, as two pairs of float16: an instruction of
#: 16 products takes the first pairs of 32 elements, the next one the second pairs.
_IN_PAIRS = (*(k for k in range(32) if k % 4 < 2), *(k for k in range(32) if k % 4 >= 2))

#: By CUDA's major compute capability.
ACCUMULATIONS: Mapping[int, Accumulations] = MappingProxyType(
    {
        8: {
            **_of("mma", _SIXTEEN, Accumulation(8, 24)),
            **_of("mma", "float32", Accumulation(4, 24)),
            **_of("dot", _SIXTEEN, Accumulation(8, 24)),
            **_of("dot", "tf32", Accumulation(4, 24)),
        },
        9: {
            **_of("wgmma", _SIXTEEN, Accumulation(16, 25, float16=True)),
            **_of("wgmma", _EIGHT, Accumulation(32, 13, 13, float16=True)),
            **_of("wgmma", "float32", Accumulation(8, 25)),
            **_of("dot", _SIXTEEN, Accumulation(16, 25)),
            **_of("dot", _EIGHT, Accumulation(16, 25, order=_IN_PAIRS, operands="float16")),
            **_of("dot", "tf32", Accumulation(8, 25)),
        },
        10: {
            **_of("tcgen05_mma", _SIXTEEN, Accumulation(16, 25)),
            **_of("tcgen05_mma", "float32", Accumulation(8, 25)),
            **_of("tcgen05_mma", f"{_EIGHT} float4_e2m1fn", Accumulation(32, 25)),
            **_of("dot", _SIXTEEN, Accumulation(16, 25)),
            **_of("dot", "tf32", Accumulation(8, 25)),
        },
    }
)

#: Compute capabilities whose sums agree with a chip to the bit: ``"chip"`` is their default.
COMPARED = frozenset({9})


# What GPUs have: multiprocessors, shared memory, tensor memory, and what XLA needs to know.


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU, as compilers, kernels and the simulator know it.

    Attributes:
      device_kind: what ``jax.Device.device_kind`` says.
      capability: CUDA's major compute capability; the minor one is 0 for every chip here.
      accelerated: whether code may use what only this generation has, such as ``wgmma`` of 9.0a
        and ``tcgen05`` of 10.0a.
      cores: streaming multiprocessors.
      units_per_core: float32 units of a multiprocessor.
      shared_per_core: bytes of shared memory of a multiprocessor.
      shared_per_block: bytes of shared memory that a block can ask for.
      l2_bytes: bytes of the level 2 cache.
      clock_ghz: the highest clock of the multiprocessors.
      bytes_per_second: bandwidth of the device's memory.
      memory_bytes: size of the device's memory.
      tensor_columns: columns of tensor memory of a multiprocessor, or 0.
    """

    device_kind: str
    capability: int
    accelerated: bool
    cores: int
    units_per_core: int
    shared_per_core: int
    shared_per_block: int
    l2_bytes: int
    clock_ghz: float
    bytes_per_second: int
    memory_bytes: int
    tensor_columns: int = 0


_H100 = Gpu(
    device_kind="NVIDIA H100 80GB HBM3",
    capability=9,
    accelerated=True,
    cores=132,
    units_per_core=128,
    shared_per_core=228 * 1024,
    shared_per_block=227 * 1024,
    l2_bytes=52_428_800,
    clock_ghz=1.98,
    bytes_per_second=3_352_320_000_000,
    memory_bytes=84_942_979_072,
)

#: Limits are those of "Technical Specifications per Compute Capability" in NVIDIA's CUDA C++
#: Programming Guide; the rest are NVIDIA's data sheets, with the sizes that the CUDA runtime
#: reports on these chips (also in XLA's ``target_config/specs``).
GPUS: dict[str, Gpu] = {
    "a100": Gpu(
        device_kind="NVIDIA A100-SXM4-80GB",
        capability=8,
        accelerated=False,
        cores=108,
        units_per_core=64,
        shared_per_core=164 * 1024,
        shared_per_block=163 * 1024,
        l2_bytes=41_943_040,
        clock_ghz=1.41,
        bytes_per_second=2_039_040_000_000,
        memory_bytes=85_100_068_864,
    ),
    "h100": _H100,
    "h200": replace(
        _H100,
        device_kind="NVIDIA H200",
        bytes_per_second=4_800_000_000_000,
        memory_bytes=151_397_597_184,
    ),
    "b200": Gpu(
        device_kind="NVIDIA B200",
        capability=10,
        accelerated=True,
        cores=148,
        units_per_core=128,
        shared_per_core=228 * 1024,
        shared_per_block=227 * 1024,
        l2_bytes=132_644_864,
        clock_ghz=1.965,
        bytes_per_second=7_672_320_000_000,
        memory_bytes=191_514_411_008,
        tensor_columns=512,
    ),
}


#: The part of a GPU's memory that JAX takes at its start, where the environment does not say it:
#: "GPU memory allocation" in JAX's documentation.
_TAKEN = 0.75


def attributes(target: str, cores: int | None = None) -> dict[str, Any]:
    """Return what ``jax.Device`` has on a chip, beside what it has on a CPU.

    Args:
      target: name of the chip, such as ``"h100"``.
      cores: TensorCores of a TPU's device, or multiprocessors of a GPU; by default as in the
        topologies of libtpu, or all of them.
    """
    if target in GPUS:
        gpu = GPUS[target]
        return {
            "core_count": cores or gpu.cores,
            "num_cores": cores or gpu.cores,  # of ``jax.sharding.AbstractDevice``
            "compute_capability": f"{gpu.capability}.0",
        }
    return {"num_cores": cores or TPUS[target].device_cores, "core_on_chip": 0}


def memory_stats(target: str, cores: int | None = None) -> dict[str, int] | None:
    """Return the ``memory_stats()`` of a device whose memory is free; None if it is not known.

    Args:
      target: name of the chip.
      cores: as for ``attributes``.
    """
    if target in GPUS:
        limit = int(GPUS[target].memory_bytes * _TAKEN)
    else:
        tpu = TPUS[target]
        limit = tpu.device_bytes * (cores or tpu.device_cores) // tpu.device_cores
    used = ("num_allocs", "bytes_in_use", "peak_bytes_in_use", "largest_alloc_size")
    reserved = ("bytes_reserved", "peak_bytes_reserved")
    stats = dict.fromkeys((*used, *reserved), 0)
    return {**stats, "largest_free_block_bytes": limit, "bytes_limit": limit} if limit else None


#: TPUs whose products of float32 were read off the code that libtpu makes; see ``products``.
_READ = frozenset(TPUS)


def is_known(target: str) -> bool:
    """Return whether it is known how a chip multiplies and adds."""
    return target in _READ or (target in GPUS and GPUS[target].capability in ACCUMULATIONS)


def arithmetic_of(target: str, arithmetic: str = "") -> str:
    """Return the arithmetic that a chip is simulated with: ``"chip"`` or ``"float32"``.

    Args:
      target: name of the chip.
      arithmetic: ``"chip"``: sums keep the bits that tensor cores keep, TPUs multiply float32 in
        passes of bfloat16, and functions have the errors of a chip; ``"float32"``: none of it;
        "" for ``"chip"`` where it was compared with a chip, else ``"float32"``.

    Raises:
      OptionError: there is no such arithmetic, or that of this chip is not known.
    """
    if arithmetic not in ("", "chip", "float32"):
        raise OptionError(f"unknown arithmetic {arithmetic!r}; valid: chip, float32")
    if not arithmetic:
        compared = target in GPUS and GPUS[target].capability in COMPARED
        return "chip" if compared else "float32"
    if arithmetic == "chip" and not is_known(target):
        raise OptionError(
            f"arithmetic='chip': how {target} adds products is not known; it is known of "
            f"{', '.join(filter(is_known, (*GPUS, *TPUS)))}. Leave it out, or say "
            "arithmetic='float32'"
        )
    return arithmetic


def accumulations(target: str, arithmetic: str = "") -> Accumulations:
    """Return how the tensor cores of a GPU add products; empty if sums are those of float32.

    Args:
      target: name of the chip; of a TPU it is not known.
      arithmetic: see ``arithmetic_of``.

    Raises:
      OptionError: as of ``arithmetic_of``.
    """
    if arithmetic_of(target, arithmetic) == "float32" or target not in GPUS:
        return {}
    return ACCUMULATIONS[GPUS[target].capability]


@dataclass(frozen=True)
class Target:
    """A chip.

    Attributes:
      name: as written on the command line, e.g. ``"v6e"``.
      platform: ``"tpu"`` or ``"gpu"``.
      device_kind: what ``jax.Device.device_kind`` says on that chip.
      cores: TensorCores that a kernel sees as one device (2 only where they are fused: v4, v5p).
      multiprocessors: of a part of a GPU; None is all that the chip has.
    """

    name: str
    platform: str
    device_kind: str
    cores: int = 1
    multiprocessors: int | None = None


def _target(name: str, chip: Tpu | Gpu) -> Target:
    if isinstance(chip, Tpu):
        return Target(name, "tpu", chip.device_kind, chip.cores)
    return Target(name, "gpu", chip.device_kind)


#: Names from Google's and NVIDIA's data sheets; device kinds as JAX reports them.
TARGETS: dict[str, Target] = {
    name: _target(name, chip) for name, chip in (*TPUS.items(), *GPUS.items())
}

_NAME = re.compile(r"\w[\w.-]*")

#: Chips that projects added, by name.
_added: dict[str, Tpu | Gpu] = {}


def cores_of(name: str) -> str:
    """Say how many TensorCores a device of a TPU has, and which chips have several."""
    several = " and ".join(chip for chip, tpu in TPUS.items() if tpu.cores > 1)
    return f"a device of {name} has {TPUS[name].cores}, one of {several} has 2"


def add_chip(name: str, chip: Tpu | Gpu) -> Target:
    """Make a chip known by a name: to backends, the simulator and the compilers.

    Call it in a conftest.py: ``--pallas-backend=gpu-sim:NAME`` is read after that.

    Args:
      name: as written on the command line.
      chip: what it has.

    Raises:
      DeviceError: another chip has this name, or it cannot be written in ``BACKEND:NAME``.
    """
    if not _NAME.fullmatch(name) or name == "all":
        raise DeviceError(f"a chip cannot be named {name!r}: write letters, digits, '-' or '.'")
    if name in TARGETS and _added.get(name) != chip:
        raise DeviceError(f"there is a chip named {name!r} already: {TARGETS[name].device_kind}")
    _added[name] = chip
    if isinstance(chip, Tpu):
        TPUS[name] = chip
    else:
        GPUS[name] = chip
    TARGETS[name] = _target(name, chip)
    return TARGETS[name]


def added_facts(name: str) -> dict[str, Any]:
    """Return what another process must ``learn`` of a chip: nothing, unless a project added it."""
    chip = _added.get(name)
    return {} if chip is None else {"platform": TARGETS[name].platform, **asdict(chip)}


def learn(name: str, facts: Mapping[str, Any]) -> None:
    """Know a chip that was added in another process, by its ``added_facts``."""
    if facts:
        fields = {key: value for key, value in facts.items() if key != "platform"}
        add_chip(name, Tpu(**fields) if facts["platform"] == "tpu" else Gpu(**fields))


#: The chip that an interpreting backend stands for when none is named.
DEFAULT_TARGETS = {"tpu": "v6e", "gpu": "h100"}


@dataclass(frozen=True)
class Label:
    """A backend as it is written: ``tpu-sim``, or ``tpu-sim:v6e``.

    Attributes:
      name: the name of its family.
      target: the name of a chip, "" if none is named.
    """

    name: str
    target: str = ""

    @classmethod
    def of(cls, text: str) -> Label:
        """Parse a label."""
        name, _, target = text.partition(":")
        return cls(name, target)

    @property
    def platform(self) -> str:
        """``"tpu"`` or ``"gpu"``, which the name begins with; "" if it runs on any."""
        word = self.name.partition("-")[0]
        return word if word in DEFAULT_TARGETS else ""

    @property
    def chip(self) -> str:
        """The named chip, or else the default of the platform; "" for any platform."""
        return self.target or DEFAULT_TARGETS.get(self.platform, "")


def default_target(platform: str) -> Target | None:
    """Return the chip that a backend of a platform stands for when none is named; None for any."""
    return TARGETS.get(DEFAULT_TARGETS.get(platform, ""))


def targets_of(platform: str) -> Collection[str]:
    """Return the names of the targets of a platform, oldest first; later ones appear in it, too."""
    chips: Mapping[str, Mapping[str, Any]] = {"tpu": TPUS, "gpu": GPUS}
    return chips.get(platform, {}).keys()


# How much memory a kernel takes, and whether a chip has it. Such a kernel does not run there.


_LANES = 128
_SUBLANES = 8


@dataclass(frozen=True)
class OperandMemory:
    """Memory that one operand takes: ``count`` buffers of ``nbytes`` each."""

    name: str
    nbytes: int
    count: int = 1

    @property
    def total(self) -> int:
        """Bytes of all of them."""
        return self.nbytes * self.count


@dataclass(frozen=True)
class Excess:
    """Memory that a chip does not have.

    Attributes:
      message: how much is taken, by what, and how much there is.
      remedy: what to do.
      largest: the name of what takes the most.
    """

    message: str
    remedy: str
    largest: str

    def finding(self, kernel: str, line: str) -> Finding:
        """Return the finding about a kernel, by its name and the ``file:line`` of its call."""
        message = f"{self.message} {self.remedy}"
        return Finding(kind="capacity", message=message, kernel=kernel, line=line, ref=self.largest)


def padded(shape: Sequence[int], dtype: Any) -> int:
    """Return bytes of an array in VMEM or SMEM: its last two dims are padded to tiles."""
    if not shape:
        return 4
    return int(
        math.prod(padded_shape((1, 1, *shape)[-max(2, len(shape)) :], dtype)) * itemsize(dtype)
    )


def padded_shape(shape: Sequence[int], dtype: Any) -> tuple[int, ...]:
    """Return the shape of an array, of an axis at least, with its padding to whole tiles.

    A tile has 128 lanes, and 8 sublanes of 32 bits, which hold several rows of a narrow dtype. A
    few rows take no more sublanes than they need, rounded up to a power of two (libtpu 0.0.51,
    measured). A tile of an array with one axis is a row of 32 bits in each lane.
    """
    *outer, lanes = shape
    packing = max(1, int(4 / itemsize(dtype)))
    if not outer:
        return (-(-lanes // (packing * _LANES)) * packing * _LANES,)
    *outer, rows = outer
    tile = min(
        _SUBLANES * packing, packing * 2 ** math.ceil(math.log2(max(1, -(-rows // packing))))
    )
    return (*outer, -(-rows // tile) * tile, -(-lanes // _LANES) * _LANES)


def itemsize(dtype: Any) -> float:
    """Return the bytes of an element; 0.5 for four bits. A bool takes 4 in a kernel's ref."""
    name = str(dtype)
    if name == "bool":
        return 4
    if name.endswith("int4") or name.startswith("float4"):
        return 0.5
    if name.endswith("int2"):
        return 0.25
    return float(getattr(dtype, "itemsize", 4))


def gpu_bytes(aval: Any) -> int:
    """Return bytes of an array in shared memory: on a GPU, a bool takes 1."""
    size = 1 if str(aval.dtype) == "bool" else itemsize(aval.dtype)
    return math.ceil(math.prod(aval.shape) * size)


def vmem_excess(
    taken: Sequence[OperandMemory], chip_name: str, limit_bytes: int | None
) -> Excess | None:
    """Return an excess if a kernel takes more VMEM than it may use on a chip, or None.

    Args:
      taken: what blocks and scratch take.
      chip_name: as in ``TPUS``; of another one nothing is known.
      limit_bytes: the kernel's ``vmem_limit_bytes``, or None.
    """
    chip, total = TPUS.get(chip_name), sum(buffer.total for buffer in taken)
    if chip is None or total <= (limit := min(chip.vmem, limit_bytes or chip.vmem_limit)):
        return None
    own_limit = limit_bytes and limit_bytes <= chip.vmem
    whose = "vmem_limit_bytes is" if own_limit else f"{chip_name} gives a kernel"
    more = f", or raise vmem_limit_bytes ({chip_name} has {_size(chip.vmem)})"
    message = f"blocks and scratch take {_size(total)} of VMEM, and {whose} {_size(limit)}"
    there = f"; {chip_name} has {_size(chip.vmem)}"
    return _excess(taken, message, f"Choose smaller blocks{more if total < chip.vmem else there}.")


def smem_excess(taken: Sequence[OperandMemory], chip_name: str) -> Excess | None:
    """Return an excess of SMEM, which a core does not have, or None; see ``vmem_excess``."""
    chip, total = TPUS.get(chip_name), sum(buffer.total for buffer in taken)
    if chip is None or total <= chip.smem:
        return None
    message = (
        f"blocks and scratch take {_size(total)} of SMEM, and a core of {chip_name} has "
        f"{_size(chip.smem)}"
    )
    return _excess(taken, message, "Keep large arrays in HBM or VMEM, and copy what is needed.")


def shared_memory_excess(
    taken: Sequence[OperandMemory], chip_name: str, needed: int, *, estimated: bool = False
) -> Excess | None:
    """Return an excess if a block takes more shared memory than one of a GPU can have, or None.

    Args:
      taken: what takes it.
      chip_name: as in ``GPUS``; of another one nothing is known.
      needed: bytes, as a compiler counts them.
      estimated: whether they are estimated instead.
    """
    chip = GPUS.get(chip_name)
    if chip is None or needed <= chip.shared_per_block:
        return None
    how = " by an estimate, as no compiler for GPUs has counted it" if estimated else ""
    message = (
        f"a block takes {needed:,} bytes of shared memory{how}, and a block of {chip_name} can "
        f"have {chip.shared_per_block:,}"
    )
    return _excess(taken, message, "Choose smaller blocks, or fewer stages.", in_kib=True)


def tensor_memory_excess(taken: Sequence[tuple[str, int]], chip_name: str) -> Excess | None:
    """Return an excess if a kernel has more columns of tensor memory than an SM of a GPU, or None.

    Args:
      taken: name and columns of each reference that a kernel has at a time.
      chip_name: as in ``GPUS``.
    """
    if not taken:
        return None
    most = GPUS[chip_name].tensor_columns if chip_name in GPUS else 0
    total = sum(columns for _, columns in taken)
    # ``tcgen05.alloc`` gives powers of two, and 32 at least (PTX ISA 9.0, 9.7.16.7.1).
    needed = max(32, 1 << (total - 1).bit_length())
    if needed <= most:
        return None
    parts = ", ".join(f"{name} {columns}" for name, columns in taken)
    if not most:
        message = (
            f"{chip_name} has no tensor memory, and the kernel allocates {total} columns ({parts});"
        )
        return Excess(message, "run it on a Blackwell target, such as b200", taken[0][0])
    message = (
        f"tensor memory: the kernel takes {total} columns ({parts}), which are allocated as "
        f"{needed}, and an SM of {chip_name} has {most};"
    )
    remedy = "make the accumulators narrower, have fewer of them, or let them share memory"
    return Excess(message, remedy, taken[0][0])


def _excess(
    taken: Sequence[OperandMemory], message: str, remedy: str, *, in_kib: bool = False
) -> Excess:
    """Return an excess whose message ends with the three operands that take the most."""

    def shown(buffer: OperandMemory) -> str:
        times = f"{buffer.count} x " if buffer.count > 1 else ""
        return f"{buffer.name} {times}{_size(buffer.nbytes, in_kib=in_kib)}"

    ordered = sorted(taken, key=lambda buffer: -buffer.total)
    largest = ", ".join(map(shown, ordered[:3]))
    return Excess(f"{message}: {largest}.", remedy, ordered[0].name if ordered else "")


def _size(nbytes: float, *, in_kib: bool = False) -> str:
    if nbytes >= _MIB / 10 and not in_kib:
        return f"{nbytes / _MIB:.1f} MiB"
    return f"{nbytes / 1024:.1f} KiB"
