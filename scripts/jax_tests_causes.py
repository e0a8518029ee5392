"""Why tests of JAX do not pass on the simulator, as data for ``jax_tests.py``."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """Why tests do not pass.

    Attributes:
      text: one sentence.
      applies: whether such a test counts: it does not if it asks for something that the simulator
        is no answer to.
    """

    text: str
    applies: bool


@dataclass(frozen=True)
class Known:
    """A failure that is understood.

    Attributes:
      cause: why.
      tests: a regular expression of ``file::Class::test``.
      text: a regular expression of ``Type: message`` of the failure.
      difference: the largest absolute difference that the message may report, or None.
      relative: the largest relative difference, which then is enough.
    """

    cause: Cause
    tests: str
    text: str
    difference: float | None = None
    relative: float = 0.0

    def explains(self, test: str, said: str) -> bool:
        """Whether it is the reason of a failure."""
        if not re.search(self.tests, test) or not re.search(self.text, said):
            return False
        if self.difference is None:
            return True
        limits = {"absolute": self.difference, "relative": self.relative}
        return any(
            float(found[2]) <= limits[found[1]]
            for found in re.finditer(r"Max (\w+) difference among violations: ([\w.+-]+)", said)
        )


DEVICES = "JAX skips it: needs more devices or cores than there are"
COMPILER = Cause("asks for what the compiler refuses, prints or reports", applies=False)
OTHER_PLATFORM = Cause("is a kernel for another platform than the simulated chip's", applies=False)
VERSION = Cause("API of another version of JAX", applies=False)
PROCESS = Cause("asks the process's device, which is a CPU, for its cores", applies=False)
RACE = Cause(
    "has a race, which the simulator reports: a subcore copies a row that another one writes",
    applies=True,
)
PROFILE = Cause("asks for the profiler's trace", applies=False)
NEGATIVE = Cause(
    "indexes a reference by -1: interpret mode counts from the end, a TPU does not, and the "
    "simulator refuses it",
    applies=True,
)
OUTSIDE = Cause(
    "indexes a reference beyond its edge: interpret mode takes the last element, and the simulator "
    "refuses it",
    applies=True,
)
ALIAS = Cause(
    "reads the window of an aliased output before it writes it: interpret mode has loaded it, a "
    "TPU has not, and in the simulator it is uninitialized",
    applies=True,
)
SUMS = Cause(
    "compares a sum of products with XLA's, which adds in another order, to the last place or "
    "relative to what cancels",
    applies=True,
)
REFERENCE = Cause(
    "compares bfloat16 attention with a reference in bfloat16 on the CPU: they differ by 0.3 %, "
    "and which is nearer was not looked into",
    applies=True,
)
CALLBACKS = Cause(
    "runs a kernel in a program that XLA divides over devices, where it takes no callbacks",
    applies=False,
)
PREFIXES = Cause(
    "compares a cumulative sum of 16-bit floats: the simulator rounds each result once, and JAX "
    "rounds the partial results too",
    applies=True,
)
PLACES = Cause(
    "compares a transcendental function with XLA's approximation more closely than that is exact "
    "(erf_inv, and so normal numbers: 3e-6)",
    applies=True,
)
TRANSPOSE = Cause(
    "transposes a reference by plgpu.transpose_ref, which in JAX 0.12.0.1 raises for all that have "
    "no transforms yet: it asks hasattr(ref, 'memory_space'), and that property raises ValueError",
    applies=False,
)
RUN_STATE = Cause(
    "returns a value from the body of run_state, which JAX documents to return nothing: the "
    "lowering for GPUs hands that value out in place of the memory",
    applies=False,
)
SCHEDULING = Cause(
    "expects how many clusters a chip begins at once, and which one it cancels: neither is "
    "published",
    applies=False,
)
LEFT = Cause(
    "reaches the memory of a device that may have left the kernel: nothing orders the copy with "
    "its end, which the simulator reports",
    applies=True,
)
INLINE = Cause("inlines what the simulator does not know: a copy by TMA, or less common PTX", True)
TIME = Cause("computes for longer than the limit of a test", applies=True)
NIBBLES = Cause(
    "takes the same memory as elements of 4 and of 8 bits: the simulator keeps a byte for each",
    applies=True,
)
INTERPRETER = Cause(
    "asks for the words of JAX's interpreter, or for an option of it: the simulator reports the "
    "mistake in its own words, or has no such option",
    applies=False,
)
ONE_CORE = Cause(
    "lets several TensorCores wait for each other, of which the chip has one: it runs their "
    "programs one after the other, and never ends",
    applies=False,
)
UNLOWERED = Cause(
    "runs on JAX's interpreter only: it has an operation in a warpgroup that JAX does not lower",
    applies=False,
)
SEVERAL = Cause(
    "completes phases of a barrier that nobody waits for later: JAX's interpreter refuses that, "
    "and the simulator reports it only where somebody waits",
    applies=False,
)
REPLICATED = Cause(
    "looks at what each device has of a result that is said to be the same on all: the simulator "
    "gives the one of one device",
    applies=False,
)

MOSAIC = "mosaic_gpu_test::.*::test_"

KNOWN: tuple[Known, ...] = (
    Known(
        INTERPRETER,
        "gpu_pallas_interpret_test::.*::test_(all_warps_must|mpmd_(all_)?warps|warps_(must|of)|"
        "not_waiting_for_all|run_scoped_|cant_|skip_floating|barrier_for_buffering|"
        "not_indexing_multiple)",
        "DeadlockError|SimulationError|inf location",
    ),
    Known(INTERPRETER, "gpu_pallas_interpret_race.*::test_finds_exception_in_un", "not waited for"),
    Known(
        SEVERAL,
        "gpu_pallas_interpret_test::.*::test_(completing_barrier_twice|more_barrier_completions)",
        "not raised",
    ),
    Known(ONE_CORE, "::test_shard_map_of_core_map", "TensorCores .* are the same one here"),
    Known(UNLOWERED, "gpu_pallas_interpret_", "JAX does not lower .* for a warpgroup"),
    Known(VERSION, "gpu_pallas_interpret_test::.*::test_indexing_singleton", "not be longer than"),
    Known(REPLICATED, "gpu_pallas_interpret_distributed.*under_shard_map", "Arrays are not equal"),
    Known(SUMS, "gpu_pallas_interpret_.*test::", "Mismatched elements", 5e-5, 3e-6),
    Known(TRANSPOSE, "::Pa", r"The 'memory_space' attribute is not available on traced array"),
    Known(RUN_STATE, MOSAIC + "fori_loop_accumulator", r"1\.0 \(ACTUAL\), 5\.0"),
    Known(SCHEDULING, MOSAIC + "cluster_launch_control", "Assert"),
    Known(PROCESS, MOSAIC + "dynamic_work_scheduling", "AttributeError: "),
    Known(LEFT, "gpu_pallas_distributed_test::", "has not entered the kernel, or has left it"),
    Known(NIBBLES, MOSAIC + "smem_aliasing_works_with_subbyte", "Arrays are not equal"),
    Known(SUMS, MOSAIC + "realistic_matmul", "Error: ", 0.13, 1e-3),
    Known(COMPILER, MOSAIC + "while_loop_layout_mismatch", "takes more than|the process ended"),
    Known(TIME, "(mosaic_gpu|mgpu_\\w+)_test::", "test takes more than|the process ended .no end"),
    Known(PROFILE, MOSAIC + "profiler", "unpack|not raised"),
    Known(VERSION, MOSAIC + "copy_gmem_to_smem_predicate", "DeadlockError"),
    Known(COMPILER, MOSAIC + "errors_when_closing_over_array", "captures non-scalar array"),
    Known(COMPILER, "(mosaic_gpu|mgpu_ragged_dot)_test::", "Unknown backend: 'gpu'"),
    Known(COMPILER, MOSAIC + "mlir_error_includes_mlir_error", "Cannot lower jaxpr"),
    Known(COMPILER, MOSAIC + "(cond_get_arch|lowering_error_context)", "Assert"),
    Known(COMPILER, MOSAIC + "dump_layout_inference", "False is not true"),
    Known(COMPILER, MOSAIC + "inline_mgpu_in_warp_rejects", "does not match"),
    Known(INLINE, MOSAIC + "inline_mgpu", "MissingRuleError: "),
    Known(
        COMPILER,
        "(mosaic_gpu|gpu_pallas_distributed)_test::.*::test_(reduction_fails_on|non_scalar_load_|"
        "collapsing_several_|swizzled_dimension_dynamic_slice_raises|mixed_tmem_allocations_raise"
        "|permuted_mesh)",
        "not raised|does not match|Error: ",
    ),
    Known(
        COMPILER,
        "triton_pallas_test::.*test_(deviceless_aot|unsigned_integer_dot_raises)",
        r"lowering platform|not raised",
    ),
    Known(OTHER_PLATFORM, "", r"this kernel is written for (TPUs|Triton)"),
    Known(COMPILER, "", r"JAX compiles no pl\.pallas_call with plgpu\.CompilerParams"),
    Known(NEGATIVE, "indexing_test::", r"beyond its edge: (index -1|indices -1 to)"),
    Known(OUTSIDE, "indexing_test::.*test_advanced_indexer16", "beyond its edge: indices 1 to 2"),
    Known(ALIAS, r"pallas_vmap_test::.*input_output_aliases$", "Not equal"),
    Known(ALIAS, r"ops_test::OpsInterpretTest::test_(masked_|masked_oob_)?swap", "nan location"),
    Known(PROCESS, "::PallasCallRemoteDMATest::test_axis_dict_with_core_", "AttributeError: $"),
    Known(PROCESS, "::CoreMapTest::test_can_(create|query)_", "AttributeError: $"),
    Known(
        PROCESS, "::TPUCoreMapMemorySpaceTest::test_basic_ref_memory_space_", "AttributeError: $"
    ),
    Known(PROCESS, "::test_(mpmd_map_)?sparsecore_availability_check", "a MagicMock"),
    Known(PROCESS, "::test_padded_matmul_", "AttributeError: $|2 distinct failures"),
    Known(PROFILE, "::PallasCallTraceTest::", "AssertionError"),
    Known(
        COMPILER,
        "",
        r"MosaicError not raised|not found in 'HloModule|'scf.for' not found|'%x_ref' not found",
    ),
    Known(COMPILER, "::test_block_spec_valid_block_shapes", "not raised"),
    Known(COMPILER, "::test_block_spec_bounded_slice_static", "bounded slices"),
    Known(COMPILER, "::test_scan_with_extensive_", "not raised"),
    Known(COMPILER, "::test_unsigned_dtype_dot_raises", "not raised"),
    Known(COMPILER, "::test_f16_true_divide_unsupported", "not raised"),
    Known(COMPILER, "::test_(set_internal_scratch_size|lane_dynamic_slice)$", "not raised"),
    Known(COMPILER, "::test_(vmem_limit|vmem_oom_error_message|fifo_(over|under)flow)", "Assert"),
    Known(
        COMPILER,
        "tpu_sparsecore_pallas_test::.*::test_"
        "(2d_vmem_column_write|cumsum_2d_not_supported|invalid_gather_|scalar_(load|store)_)",
        "Error not raised",
    ),
    Known(COMPILER, "::test_auto_assigned_barrier_semaphores_no_data_corruption", "0 not greater"),
    Known(COMPILER, "::CoreMapTest::test_kernel_with_output_memory_space_", "has length of 0"),
    Known(COMPILER, "::test_automatic_single_buffering", "not raised"),
    Known(COMPILER, "::test_(cost_analysis|vector_input_output_aliasing)", "AssertionError"),
    Known(COMPILER, "::test_cost_analysis_vmap_symbolic_batch_size", "lowering platform tpu"),
    Known(COMPILER, "::PallasHloNamesTest::|::test_allow_input_fusion", "AssertionError"),
    Known(COMPILER, "::TPUPipelineModeTest::test_two_input_vadd", "has no attribute 'group'"),
    Known(
        VERSION,
        "",
        r"AttributeError: module 'jax[\w.]*' has no attribute|cannot import name"
        r"|and removed in JAX v|TypeError: .* got an unexpected keyword argument",
    ),
    Known(
        VERSION,
        r"::test_(disable_bounds_check|(load|store|swap)_pretty_print\d)$",
        "Error: Out of bound slice",
    ),
    Known(VERSION, "::test_bitcast_vmap1", "Invalid shape for `swap`"),
    Known(VERSION, "::test_empty_core_map_raises_error", "not raised"),
    Known(OUTSIDE, "tpu_pallas_interpret_distributed_test::.*::test_that_", "index 100 of axis 0"),
    Known(SUMS, "tpu_pallas_state_test::.*::test_stateful_matmul$", "Error: ", 1e-4, 1e-3),
    Known(REFERENCE, "::PagedAttentionKernelTest::test_paged_attention", "Error: ", 0.07),
    Known(CALLBACKS, "", "callbacks are only supported in spmd computations"),
    Known(RACE, "tpu_sparsecore_pallas_test::.*::test_barrier$", "Error: "),
    Known(SUMS, "::test_(dot_|fuse_transposed_lhs|megacore_splitting)", "Error: ", 3e-4),
    Known(SUMS, "::test_jnp_einsum_grad_y_pallas", "Error: ", 0.0, 1e-6),
    Known(PREFIXES, "::test_cumsum0", "Error: Not equal", 0.02),
    Known(PLACES, "::test_unary_(math_)?ops", "Error: ", 3e-7, 1e-7),
    Known(PLACES, "::test_(erf_inv|unary_primitives_|custom_vjp)", "Error: ", 1e-5),
    Known(PLACES, "::test_pallas_matches_jax_threefry", "Error: Arrays are not equal", 2e-5),
)


def cause_of(file: str, name: str, error: str, text: str) -> Cause | None:
    """Why a test fails, or None if nobody knows."""
    test, said = f"{file}::{name}", f"{error}: {' '.join(text.split())}"
    known = next((each for each in KNOWN if each.explains(test, said)), None)
    if known is None:
        return None
    if known.cause is VERSION:
        missing = re.search(
            r"module '([\w.]+)' has no attribute '(\w+)'|cannot import name '(\w+)'"
            r"|(\w+\(\)) got an unexpected keyword argument '(\w+)'",
            said,
        )
        if missing:
            name = ".".join(part for part in missing.groups() if part)
            return Cause(f"{VERSION.text}: {name}", applies=False)
        return Cause(f"{VERSION.text}: behaviour that {name.rpartition('::')[2]} tests", False)
    return known.cause


#: What JAX's tests say when they skip themselves, and what is printed for it.
SKIPPED: tuple[tuple[str, str], ...] = (
    (r"GPU|gpu|CUDA|cuda|ROCm|[Tt]riton", "JAX skips it: for GPUs"),
    (r"\b[Dd]evices? (required|needed)|(R|r)equires .*(devices|cores)|SparseCore", DEVICES),
    (r"[Bb]ase class", "JAX skips it: the base of other classes"),
    (r"[Ii]nterpret|CPU|cpu", "JAX skips it on TPUs, and in interpret mode too"),
    (r"TPU|libtpu|v\d", "JAX skips it on this TPU"),
)


def not_applicable(reason: str) -> str:
    """One name for what JAX's tests say when they skip themselves."""
    said = next((name for pattern, name in SKIPPED if re.search(pattern, reason)), None)
    return said or f"JAX skips it: {' '.join(reason.split())[:80]}"
