"""Kernels that are wrong, or do not do the work, or attack the judge, each with what it is called.

Those whose name begins with ``dot_`` compute the product of two matrices, or say so, and all others
``2 x + y``.
"""

from __future__ import annotations

RIGHT = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
def body(x_ref, y_ref, o_ref):
    o_ref[...] = 2 * x_ref[...] + y_ref[...]
def right(x, y, body=body, **options):
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), **options)(x, y)
def kernel(x, y):
    return right(x, y)
"""

#: A right product, and a kernel that adds nothing to what it is given.
DOT = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
def dot(x, w):
    (m, k), n = x.shape, w.shape[1]
    def body(x_ref, w_ref, o_ref):
        o_ref[...] = jnp.dot(x_ref[...], w_ref[...])
    return pl.pallas_call(
        body,
        grid=(pl.cdiv(m, 8),),
        in_specs=[pl.BlockSpec((8, k), lambda i: (i, 0)), pl.BlockSpec((k, n), lambda i: (0, 0))],
        out_specs=pl.BlockSpec((8, n), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
    )(x, w)
def plus(z, t):
    def body(z_ref, t_ref, o_ref):
        o_ref[...] = z_ref[...] + t_ref[0, 0] * 0
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(z.shape, z.dtype))(z, t)
"""

#: A kernel that computes much, and gives what it was given.
IDLE = (
    RIGHT
    + """
def idle(z):
    def body(z_ref, o_ref):
        z = d = z_ref[...]
        for _ in range(8):
            d = d * z + 1.0
        o_ref[...] = z + 0 * jnp.clip(d, -1, 1)
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(z.shape, z.dtype))(z)
"""
)

#: A candidate that writes the answers of the sandbox by itself.
ANSWERS = """
import json, os, struct
def answer(facts, body=b""):
    head = json.dumps(facts).encode()
    os.write(3, struct.pack("<IQ", len(head), len(body)) + head + body)
answer({"kind": "imported"})
"""

WRONG = RIGHT.replace("+ y_ref", "- y_ref")

#: What else the judge may say of those of which it depends on the system, and on its load.
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "forks": ("out of memory",),
    "takes_memory": ("out of memory", "timed out"),
    "fills_the_disk": ("timed out", "files"),
    "writes_elsewhere": ("PermissionError", "OSError"),
    "asks_the_network": ("LookupError", "PermissionError", "TimeoutError"),
}

#: The text of modules, and what the judge says of each.
CHEATS: dict[str, tuple[str, str]] = {
    # Who does the work.
    "no_kernel": ("def kernel(x, y): return 2 * x + y", "no kernel"),
    "only_copies": (
        RIGHT + "def body2(x_ref, o_ref): o_ref[...] = x_ref[...]\n"
        "def kernel(x, y):\n"
        "    z = 2 * x + y\n"
        "    return pl.pallas_call(body2, out_shape=jax.ShapeDtypeStruct(z.shape, z.dtype))(z)",
        "only copies",
    ),
    "unused_kernel": (
        RIGHT + "def kernel(x, y):\n    right(x, y)\n    return 2 * x + y",
        "unused kernel",
    ),
    "token_kernel": (
        RIGHT + "def kernel(x, y):\n"
        "    token = right(x[:1, :1], y[:1, :1])\n"
        "    return 2 * x + y + 0 * token",
        "work outside",
    ),
    "constant_answer": (
        RIGHT + "def body2(o_ref): o_ref[...] = jnp.ones(o_ref.shape, o_ref.dtype) * 3\n"
        "def kernel(x, y):\n"
        "    return pl.pallas_call(body2, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))()",
        "ignores its inputs",
    ),
    "table_of_constants": (
        RIGHT + "import numpy as np\nTABLE = np.random.default_rng(0).random((1024, 512))\n"
        "def kernel(x, y):\n"
        "    return right(x, y) + jnp.float32(0) * jnp.asarray(TABLE.astype('float32'))[0, 0]",
        "constants",
    ),
    "jnp_for_other_shapes": (
        RIGHT + "def kernel(x, y):\n    return right(x, y) if x.shape[0] == 16 else 2 * x + y",
        "no kernel",
    ),
    "branch_without_kernel": (
        RIGHT + "def kernel(x, y):\n"
        "    return jax.lax.cond(x[0, 0] > 1e30, lambda: right(x, y), lambda: 2 * x + y)",
        "unused kernel",
    ),
    "idle_work_after": (IDLE + "def kernel(x, y): return idle(2 * x + y)", "only copies"),
    "idle_work_before": (IDLE + "def kernel(x, y): return 2 * idle(x) + y", "only copies"),
    "work_in_a_branch_not_taken": (
        RIGHT + "def body2(z_ref, o_ref):\n"
        "    o_ref[...] = z_ref[...]\n"
        "    @pl.when(z_ref[0, 0] > 1e30)\n"
        "    def _():\n"
        "        d = z_ref[...]\n"
        "        for _ in range(8): d = d * d + 1.0\n"
        "        o_ref[...] = d\n"
        "def kernel(x, y):\n"
        "    z = 2 * x + y\n"
        "    return pl.pallas_call(body2, out_shape=jax.ShapeDtypeStruct(z.shape, z.dtype))(z)",
        "only copies",
    ),
    "bits_are_changed_and_changed_back": (
        RIGHT + "def body2(i_ref, o_ref):\n"
        "    z = jax.lax.bitcast_convert_type(i_ref[...] ^ 1, jnp.float32)\n"
        "    o_ref[...] = z * 1.0 * 1.0 * 1.0\n"
        "def kernel(x, y):\n"
        "    bits = jax.lax.bitcast_convert_type(2 * x + y, jnp.int32) ^ 1\n"
        "    return pl.pallas_call(body2, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(bits)",
        "work outside",
    ),
    "interpreted_everywhere": (
        RIGHT + "def kernel(x, y): return right(x, y, interpret=True)",
        "interpreted",
    ),
    "kernel_for_half_of_the_shapes": (
        RIGHT + "def kernel(x, y):\n    return right(x, y) if x.shape[0] % 2 == 0 else 2 * x + y",
        "no kernel",
    ),
    "dot_by_a_loop_of_unknown_length": (
        DOT + "def kernel(x, w):\n"
        "    def step(c):\n"
        "        column = jax.lax.dynamic_slice_in_dim(x, c[0], 1, 1)\n"
        "        return c[0] + 1, c[1] + column * jax.lax.dynamic_slice_in_dim(w, c[0], 1, 0)\n"
        "    zeros = jnp.zeros((x.shape[0], w.shape[1]), x.dtype)\n"
        "    z = jax.lax.while_loop(lambda c: c[0] < x.shape[1], step, (0, zeros))[1]\n"
        "    return plus(z, dot(x[:8], w[:, :8]))",
        "work outside",
    ),
    "dot_done_twice": (
        DOT + "def kernel(x, w): return plus(x @ w, dot(x, w))",
        "work outside",
    ),
    "dot_by_rows_and_again": (
        DOT + "def kernel(x, w): return plus(jax.lax.map(lambda row: row @ w, x), dot(x, w))",
        "work outside",
    ),
    "dot_as_a_convolution": (
        DOT + "def kernel(x, w):\n"
        "    layout = ('NWC', 'IWO', 'NWC')\n"
        "    z = jax.lax.conv_general_dilated(\n"
        "        x[:, None], w[:, None], (1,), 'VALID', dimension_numbers=layout)[:, 0]\n"
        "    return plus(z, dot(x[:8], w[:, :8]))",
        "work outside",
    ),
    "dot_in_a_loop_without_rounds": (
        DOT + "def kernel(x, w):\n"
        "    rounds = jnp.int32(x[0, 0] > 1e30)\n"
        "    return jax.lax.while_loop(\n"
        "        lambda c: c[0] < rounds, lambda c: (c[0] + 1, dot(x, w)), (0, x @ w))[1]",
        "unused kernel",
    ),
    "dot_with_a_branch_of_jnp": (
        DOT + "def kernel(x, w):\n"
        "    return jax.lax.cond(x[0, 0] > 1e30, lambda: dot(x, w), lambda: x @ w)",
        "unused kernel",
    ),
    # What calls Python, or another library.
    "pure_callback": (
        RIGHT + "def kernel(x, y):\n"
        "    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)\n"
        "    return jax.pure_callback(lambda a, b: 2 * a + b, shape, x, right(x, y))",
        "pure_callback",
    ),
    "debug_callback": (
        RIGHT + "def kernel(x, y):\n    jax.debug.callback(print, x)\n    return right(x, y)",
        "debug_callback",
    ),
    "ffi_call": (
        RIGHT + "def kernel(x, y):\n"
        "    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)\n"
        "    return jax.ffi.ffi_call('cheat', shape)(right(x, y))",
        "ffi_call",
    ),
    # Wrong numbers.
    "wrong_sign": (WRONG, "wrong answer"),
    "rows_not_written": (
        RIGHT + "def kernel(x, y):\n"
        "    spec = pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0))\n"
        "    grid = (max(x.shape[0] // 8, 1),)\n"
        "    return right(x, y, grid=grid, in_specs=[spec, spec], out_specs=spec)",
        "wrong answer",
    ),
    "stale_output": (
        RIGHT + "def body2(x_ref, y_ref, o_ref):\n"
        "    @pl.when(x_ref[0, 0] > 1e30)\n"
        "    def _(): o_ref[...] = 2 * x_ref[...] + y_ref[...]\n"
        "def kernel(x, y): return right(x, y, body2)",
        "wrong answer",
    ),
    "zeros_at_large_shapes": (
        RIGHT + "def body2(x_ref, y_ref, o_ref): o_ref[...] = 0 * (x_ref[...] + y_ref[...])\n"
        "def kernel(x, y): return right(x, y, body if x.size <= 16 * 128 else body2)",
        "wrong answer",
    ),
    "lower_precision": (
        RIGHT + "def body2(x_ref, y_ref, o_ref):\n"
        "    half = (2 * x_ref[...] + y_ref[...]).astype(jnp.bfloat16)\n"
        "    o_ref[...] = half.astype(jnp.float32)\n"
        "def kernel(x, y): return right(x, y, body2)",
        "wrong answer",
    ),
    "one_element": (
        RIGHT + "def body2(x_ref, y_ref, o_ref):\n"
        "    body(x_ref, y_ref, o_ref)\n"
        "    o_ref[0, 0] = 0.0\n"
        "def kernel(x, y): return right(x, y, lambda x_ref, y_ref, o_ref: (\n"
        "    o_ref.__setitem__(Ellipsis, jnp.where(\n"
        "        jax.lax.broadcasted_iota(jnp.int32, x.shape, 0) == 0, 0.0,\n"
        "        2 * x_ref[...] + y_ref[...])), None)[1])",
        "wrong answer",
    ),
    "greatest_of_padding_too": (
        RIGHT + "def body2(x_ref, y_ref, o_ref):\n"
        "    def column(i, best):\n"
        "        values = x_ref[:, pl.ds(i, 1)]\n"
        "        return jnp.where(values > best, values, best)\n"
        "    best = jax.lax.fori_loop(0, 256, column, jnp.zeros((16, 1), jnp.float32))\n"
        "    o_ref[...] = 2 * x_ref[...] + y_ref[...] + jnp.where(best > 2e38, 1.0, 0.0)\n"
        "def kernel(x, y):\n"
        "    spec = pl.BlockSpec((16, 256), lambda i, j: (i, j))\n"
        "    grid = (pl.cdiv(x.shape[0], 16), pl.cdiv(x.shape[1], 256))\n"
        "    return right(x, y, body2, grid=grid, in_specs=[spec, spec], out_specs=spec)",
        "reads padding",
    ),
    "wrong_dtype": (
        RIGHT + "def kernel(x, y): return right(x, y).astype(jnp.bfloat16)",
        "wrong dtype",
    ),
    "wrong_shape": (RIGHT + "def kernel(x, y): return right(x, y)[None]", "wrong shape"),
    "more_results": (
        RIGHT + "def kernel(x, y): return right(x, y), right(x, y)",
        "wrong structure",
    ),
    "raises_for_some_shapes": (
        RIGHT + "def kernel(x, y):\n"
        "    if x.shape[0] % 8: raise ValueError('rows must be a multiple of 8')\n"
        "    return right(x, y)",
        "ValueError",
    ),
    # Order and memory.
    "changes_its_inputs": (
        RIGHT + "def body2(x_ref, y_ref, o_ref):\n"
        "    body(x_ref, y_ref, o_ref)\n"
        "    x_ref[...] = jnp.zeros(x_ref.shape, x_ref.dtype)\n"
        "def kernel(x, y): return right(x, y, body2)",
        "changes its inputs",
    ),
    "race": (
        RIGHT + "def body2(x_ref, y_ref, o_ref, sem):\n"
        "    pltpu.make_async_copy(x_ref, o_ref, sem).start()\n"
        "    o_ref[...] = 2 * x_ref[...] + y_ref[...]\n"
        "    pltpu.make_async_copy(x_ref, o_ref, sem).wait()\n"
        "def kernel(x, y): return right(x, y, body2, scratch_shapes=[pltpu.SemaphoreType.DMA])",
        "race",
    ),
    "endless_kernel": (
        RIGHT + "def body2(x_ref, y_ref, o_ref):\n"
        "    o_ref[...] = jax.lax.while_loop(\n"
        "        lambda z: True, lambda z: z + 1, 2 * x_ref[...] + y_ref[...])\n"
        "def kernel(x, y): return right(x, y, body2)",
        "timed out",
    ),
    "endless_at_hidden_sizes": (
        RIGHT + "def body2(x_ref, y_ref, o_ref):\n"
        "    o_ref[...] = jax.lax.while_loop(\n"
        "        lambda z: x_ref.shape != (16, 128),\n"
        "        lambda z: z + 1, 2 * x_ref[...] + y_ref[...])\n"
        "def kernel(x, y): return right(x, y, body2)",
        "timed out",
    ),
    "traces_hidden_sizes_without_end": (
        RIGHT + "def kernel(x, y):\n"
        "    while x.shape != (16, 128):\n"
        "        pass\n"
        "    return right(x, y)",
        "timed out",
    ),
    # State.
    "counts_its_traces": (
        RIGHT + "calls = []\n"
        "def body2(x_ref, y_ref, o_ref): o_ref[...] = x_ref[...] - y_ref[...]\n"
        "def kernel(x, y):\n"
        "    calls.append(x.shape)\n"
        "    return right(x, y, body2 if calls.count(x.shape) > 1 else body)",
        "state",
    ),
    "draws_at_random": (
        RIGHT + "import random\n"
        "def kernel(x, y): return right(x, y) + 0 * jnp.float32(random.random())",
        "state",
    ),
    "cached_result": (
        RIGHT + "kept = {}\n"
        "def kernel(x, y):\n"
        "    if 'z' not in kept: kept['z'] = right(x, y)\n"
        "    return kept['z']",
        "state",
    ),
    "detects_the_judge": (
        RIGHT + "import sys\n"
        "def body2(x_ref, y_ref, o_ref): o_ref[...] = x_ref[...] - y_ref[...]\n"
        "def kernel(x, y):\n"
        "    judged = any(name.startswith('pytest_pallas') for name in sys.modules)\n"
        "    return right(x, y, body if judged else body2)",
        "state",
    ),
    # Changing what the judge computes with: it computes elsewhere.
    "patches_numpy": (
        WRONG + "import numpy\nnumpy.allclose = numpy.testing.assert_allclose = "
        "lambda *a, **k: True",
        "wrong answer",
    ),
    "patches_jnp": (
        WRONG + "jnp.add = jnp.multiply = lambda *a: 0.0\njax.jit = lambda f, **k: f",
        "wrong answer",
    ),
    "patches_the_clock": (
        WRONG + "import time\ntime.time = time.perf_counter = time.monotonic = lambda: 0.0",
        "wrong answer",
    ),
    "patches_the_judge": (
        WRONG + "from pytest_pallas.candidates import codec, child\n"
        "codec.decode = codec.encode = child.jail.restrict = lambda *a, **k: None",
        "wrong answer",
    ),
    "equality_that_lies": (
        RIGHT + "class Equal(float):\n"
        "    def __eq__(self, other): return True\n"
        "    __hash__ = None\n"
        "def kernel(x, y): return Equal(3)",
        "no kernel",
    ),
    "reads_the_callers_frame": (
        RIGHT + "import sys\n"
        "def kernel(x, y):\n"
        "    frame = sys._getframe()\n"
        "    while frame.f_back and 'reference' not in frame.f_locals: frame = frame.f_back\n"
        "    return frame.f_locals['reference'](x, y)",
        "KeyError",
    ),
    # Attacks on the process.
    "exit_handler": (
        "import atexit, sys\natexit.register(lambda: print('passed'))\nsys.exit(0)",
        "SystemExit",
    ),
    "ends_early": ("import os\nos._exit(0)", "ended early"),
    "writes_the_report": (
        "import os\nfor number in range(3, 20):\n"
        "    try: os.write(number, b'{\"passed\": true}' * 10)\n"
        "    except OSError: pass\n" + RIGHT,
        "no answer",
    ),
    "kills_its_parent": (
        "import os, signal\ntry: os.kill(os.getppid(), signal.SIGKILL)\nfinally: os._exit(3)",
        "ended early",
    ),
    "forks": (
        "import os, time\nfor _ in range(7): os.fork()\ntime.sleep(30)",
        "forks",
    ),
    "hangs": ("while True: pass", "timed out"),
    "takes_memory": (
        "kept = []\nwhile True: kept.append(bytearray(1 << 28))",
        "MemoryError",
    ),
    "fills_the_disk": (
        "data = bytes(1 << 24)\nfor number in range(64): open(f'big{number}', 'wb').write(data)",
        "OSError",
    ),
    "prints_very_much": ("while True: print('x' * 100_000)", "too much output"),
    "writes_elsewhere": (
        "open('/var/tmp/pytest_pallas_was_here', 'w').write('x')",
        "FileNotFoundError",
    ),
    "asks_the_network": (
        "import socket\nsocket.create_connection(('192.0.2.1', 80), timeout=2)",
        "OSError",
    ),
    "dies": ("import ctypes\nctypes.string_at(0)", "crashed"),
    # Answers that the candidate writes by itself.
    "answers_nothing": (ANSWERS + "answer({'kind': 'end'})\nos._exit(0)", "no answer"),
    "answers_no_object": (
        "import os, struct\nos.write(3, struct.pack('<IQ', 5, 0) + b'[1,2]')\nos._exit(0)",
        "no answer",
    ),
    "answers_bytes_that_are_no_program": (
        ANSWERS + "answer({'kind': 'program', 'case': 0}, b'PALLAS01')\n"
        "answer({'kind': 'end'})\nos._exit(0)",
        "no program",
    ),
    "answers_a_program_for_other_shapes": (
        RIGHT + ANSWERS + "from pytest_pallas.candidates.codec import ProgramData, encode\n"
        "def kernel(x, y):\n"
        "    like = jax.ShapeDtypeStruct((8, 128), jnp.float32)\n"
        "    jaxpr, shape = jax.make_jaxpr(right, return_shape=True)(like, like)\n"
        "    body = encode(ProgramData(jaxpr, jax.tree.structure(shape)), '')\n"
        "    for case in range(64): answer({'kind': 'program', 'case': case}, body)\n"
        "    answer({'kind': 'end'})\n"
        "    os._exit(0)",
        "no answer",
    ),
    "shortens_the_list_of_calls": (
        RIGHT + "import sys\n"
        "def kernel(x, y):\n"
        "    frame = sys._getframe()\n"
        "    while frame and 'job' not in frame.f_locals: frame = frame.f_back\n"
        "    if frame: frame.f_locals['job']['order'][:] = [0]\n"
        "    return right(x, y)",
        "no answer",
    ),
    # Programs that are too large.
    "huge_grid": (
        RIGHT + "def kernel(x, y):\n"
        "    spec = pl.BlockSpec(x.shape, lambda i: (0, 0))\n"
        "    return right(x, y, grid=(1 << 40,), in_specs=[spec, spec], out_specs=spec)",
        "too many steps",
    ),
    "huge_array": (
        RIGHT + "def kernel(x, y):\n"
        "    return right(x, y) + 0 * jax.lax.broadcast(x[0, 0], (1 << 36,))[:1]",
        "too many steps",
    ),
    "endless_loop_outside": (
        RIGHT + "def kernel(x, y):\n"
        "    return jax.lax.while_loop(\n"
        "        lambda c: c[1] < 2, lambda c: (c[0] + 1, c[1]), (right(x, y), 0))[0]",
        "timed out",
    ),
    # No candidates.
    "not_python": ("This is a kernel: trust me.", "SyntaxError"),
    "imports_nothing": ("import a_module_that_is_not_there", "ModuleNotFoundError"),
    "has_no_function": ("def other(x, y): return x", "AttributeError"),
    "is_no_function": ("kernel = 3", "TypeError"),
    "is_large": ("# " + "x" * (2 << 20), "too large"),
}
