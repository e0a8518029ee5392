"""What ptxas, Mosaic GPU and XLA say, as they said it (jax 0.12.0, ptxas 13.5.37, for sm_90a)."""

from pytest_pallas.compile import machine_code as ptxas
from pytest_pallas.compile.machine_code import Cost

PLAIN = """\
ptxas info    : (C7519) warpgroup.arrive is injected in around line 483 by compiler to allow use of registers in GMMA in function 'anonymous_mosaic_gpu_kernel'
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'anonymous_mosaic_gpu_kernel' for 'sm_90a'
ptxas info    : Function properties for anonymous_mosaic_gpu_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 16 barriers, 1 bytes smem
ptxas info    : Compile time = 47.706 ms
"""  # noqa: E501

LOG = """\
I1121 06:22:59.264854    2785 subprocess_compilation.cc:283] ptx written to: /tmp/tempfile-1
I1121 06:22:59.473493    2785 subprocess_compilation.cc:356] ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'input_reduce_fusion_1' for 'sm_90a'
ptxas info    : Function properties for input_reduce_fusion_1
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 18 registers, used 1 barriers, 132 bytes smem
ptxas info    : Compile time = 20.328 ms

I1121 06:23:00.999965    2952 subprocess_compilation.cc:356] ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register resources for the wgmma pipeline in the function 'mha_forward' in line 465
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'mha_forward' for 'sm_90a'
ptxas info    : Function properties for mha_forward
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 242 registers, used 1 barriers
ptxas info    : Compile time = 599.021 ms

I1121 06:23:08.293905    2952 subprocess_compilation.cc:349] ptxas warning : Registers are spilled to local memory in function 'k', 89490 bytes spill stores, 98108 bytes spill loads
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    26832 bytes stack frame, 89490 bytes spill stores, 98108 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 26832 bytes cumulative stack size
ptxas info    : Compile time = 10927.594 ms
"""  # noqa: E501

SERIALIZED = (
    "(C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
    "insufficient register resources for the wgmma pipeline"
)


def test_the_numbers_of_one_kernel():
    assert ptxas.costs(PLAIN) == (
        Cost(
            kernel="anonymous_mosaic_gpu_kernel",
            registers=168,
            shared_bytes=1,
            stack_bytes=0,
            spill_store_bytes=0,
            spill_load_bytes=0,
        ),
    )


def test_kernels_in_a_log():
    fusion, attention, spilling = ptxas.costs(LOG)
    assert (fusion.kernel, fusion.registers, fusion.shared_bytes) == (
        "input_reduce_fusion_1",
        18,
        132,
    )
    assert (attention.kernel, attention.registers) == ("mha_forward", 242)
    assert spilling == Cost(
        kernel="k",
        registers=64,
        shared_bytes=0,
        stack_bytes=26832,
        spill_store_bytes=89490,
        spill_load_bytes=98108,
    )


def test_a_warning_belongs_to_the_kernel_of_its_run():
    assert [cost.warnings for cost in ptxas.costs(LOG)] == [(), (SERIALIZED,), ()]


def test_a_warning_that_comes_last_belongs_to_the_kernel_before_it():
    text = (
        PLAIN + "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored.\n" + LOG
    )
    costs = ptxas.costs(text)
    assert costs[0].warnings == ("(C7508) Potential Performance Loss: 'setmaxnreg' ignored.",)
    assert costs[1].warnings == ()


def test_a_warning_that_names_a_later_kernel_waits_for_it():
    one, other = (PLAIN.replace("anonymous", name).split("\n", 1)[1] for name in ("a", "b"))
    warning = "ptxas warning : something in function 'b_mosaic_gpu_kernel'\n"
    assert [cost.warnings for cost in ptxas.costs(warning + one + other)] == [(), ("something",)]


def test_functions_that_are_not_kernels_are_left_out():
    text = PLAIN + (
        "ptxas info    : Function properties for helper\n"
        "    8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads\n"
    )
    (cost,) = ptxas.costs(text)
    assert (cost.stack_bytes, cost.spill_store_bytes) == (0, 0)


def test_no_kernels():
    assert ptxas.costs("ptxas fatal   : Ptx assembly aborted due to errors\n") == ()


def test_shared_memory_of_mosaic_kernels_is_in_the_host_code():
    jax_0_12 = (
        "declare void @mosaic_gpu_build_kernel_spec(ptr, i32, i32, i32, i32, i32, i32, i32, i32)\n"
        "  call void @mosaic_gpu_build_kernel_spec(ptr %0, i32 1, i32 1, i32 1, i32 0, i32 0, "
        "i32 0, i32 384, i32 1, i32 1, i32 229440, i32 0, i32 1, ptr %337, ptr %339)\n"
    )
    jax_0_11 = (
        "  %46 = call i32 @mosaic_gpu_launch_kernel(ptr %0, i32 2, i32 2, i32 1, i32 0, i32 0, "
        "i32 0, i32 128, i32 1, i32 1, i32 32776, i32 0, ptr %1, ptr %43)\n"
    )
    assert ptxas.launches(jax_0_12 + jax_0_11) == (229440, 32776)


def test_shared_memory_of_triton_kernels_is_in_the_thunks():
    sequence = """\
000: kCommandBuffer [source | sink]
    001: kCustomKernel [source       | next=003 (2)] fusion grid: [128, 1, 1] threads: [128, 1, 1]  shared_memory: 0 bytes
    002: kCustomKernel [source       | next=003 (1)] mha_forward grid: [1, 1, 2] threads: [128, 1, 1]  shared_memory: 32768 bytes
003: kCustomCall [source | sink] kCustomCall
"""  # noqa: E501
    assert ptxas.thunks(sequence) == {"fusion": 0, "mha_forward": 32768}
