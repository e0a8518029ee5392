"""A script that calls kernels from copies of their files, where jax and numpy are all there is.

Beside the script are folders ``copy-*``. In each are the files of one kernel, and ``job.pickle``:
the module of the kernel, and calls to make.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
import importlib
import importlib.util
import pickle
import sys
import traceback
from pathlib import Path

import jax
import numpy as np
from jax.experimental.pallas import tpu as pltpu


def trace(function, args, options, kind, facts, axes):
    """Trace a call of a kernel, body and all, for a chip that is not there."""
    gpu = sys.modules.get("reference_kernels._gpu")
    if gpu is not None:
        gpu._asked = facts.__getitem__  # which asks the GPU
    chip = jax.sharding.AbstractDevice(device_kind=kind, num_cores=1, platform="tpu")
    types = (jax.sharding.AxisType.Auto,) * len(axes)
    mesh = jax.sharding.AbstractMesh(
        tuple(axes.values()), tuple(axes), axis_types=types, abstract_device=chip
    )
    more = {"mesh": mesh} if axes else {}
    with jax.sharding.use_abstract_mesh(mesh):
        results = jax.eval_shape(lambda *args: function(*args, **options, **more), *args)
    assert jax.tree.leaves(results)


def run(function, reference, args, options, tuning):
    """Run a kernel, and compare it with the reference."""
    with pltpu.force_tpu_interpret_mode():
        actual = function(*args, **options, **tuning)
    wanted = reference(*args, **options)
    assert actual.shape == wanted.shape
    difference = np.asarray(actual, np.float64) - np.asarray(wanted, np.float64)
    scale = max(1.0, float(np.abs(np.asarray(wanted, np.float64)).max()))
    assert np.abs(difference).max() <= 1e-2 * scale  # bfloat16's rounding, and some


def main() -> int:
    for name in ("hypothesis", "pytest", "pytest_pallas"):
        assert importlib.util.find_spec(name) is None, f"{name} can be imported"
    failed = 0
    for folder in sorted(Path(__file__).parent.glob("copy-*")):
        for name in [name for name in sys.modules if name.startswith("reference_kernels")]:
            del sys.modules[name]
        sys.path.insert(0, str(folder))
        try:
            module, jobs = pickle.loads((folder / "job.pickle").read_bytes())
            importlib.import_module(module)
            for action, arguments in jobs:
                {"trace": trace, "run": run}[action](*pickle.loads(arguments))
        except Exception:
            failed += 1
            sys.stdout.write(f"{folder.name}: {traceback.format_exc()}\n")
        sys.path.remove(str(folder))
    sys.stdout.write(f"{failed} failed\n")
    return failed


if __name__ == "__main__":
    sys.exit(bool(main()))
