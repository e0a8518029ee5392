"""``scripts/gpu_verify.sh`` and its benchmark, as far as they go without a GPU."""

import importlib.util
import multiprocessing
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from pytest_pallas.options import TABLE

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/gpu_verify.sh"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("gpu_kernels", ROOT / "benchmarks/gpu_kernels.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_kernels"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_its_options_exist():
    flags = set(re.findall(r"--pallas-[a-z-]+", SCRIPT.read_text()))
    assert flags
    assert flags <= {option.flag for option in TABLE}


def test_its_steps_take_less_than_nine_minutes():
    seconds = [int(number) for number in re.findall(r"^step (\d+) ", SCRIPT.read_text(), re.M)]
    assert len(seconds) == 6
    assert sum(seconds) < 9 * 60


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_fails(tmp_path):
    environment = {**os.environ, "PYTHON": sys.executable, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        ["bash", SCRIPT, tmp_path / "out"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "gpu" in done.stderr.splitlines()[-1]


def test_steps_that_are_named_run(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", SCRIPT, tmp_path / "out", "", "cross", "answers"],
        env={**os.environ, "PYTHON": str(python)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    calls = [line for line in (tmp_path / "calls").read_text().splitlines() if "out/" in line]
    assert [call.split()[0] for call in calls] == ["-m", "scripts/chip_answers.py"]
    assert "--pallas-checks=cross" in calls[0]


def in_any_layout(shapes: str) -> str:
    """The shapes with their sizes in ascending order: each side has its own layout."""
    return re.sub(r"\[(.*?)\]", lambda sizes: f"[{sorted(sizes[1].split(', '))}]", shapes)


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_all_of_a_row_give_the_same_shape(benchmark):
    """Traced for a GPU that is not there; cuDNN is asked for by name, and is not here.

    JAX's attention asks for CUDA's version while it is traced, which its plugin has. A kernel may
    need names that an older JAX lacks, and says so.
    """
    rows = list(benchmark.rows())
    assert len(rows) >= 10
    without = importlib.util.find_spec("jax_cuda13_plugin") is None
    old = jax.__version_info__ < (0, 12)
    for row in rows:
        found = benchmark.trace(row)
        known = {
            in_any_layout(text)
            for side, text in found.items()
            if "cuDNN" not in text
            and not (without and side == "JAX's" and "Error" in text)
            and not (old and side == "ours" and text.startswith("NotImplementedError"))
        }
        assert len(known) == 1, (row.name, found)
        assert re.match(r"u?(bfloat|float|int)\d+\[\['\d", known.pop()), (row.name, found)


def test_a_line_of_the_table(benchmark):
    row = next(benchmark.rows())
    line = benchmark._line(
        row, {"ours": 2e-4, "XLA": 1e-4, "JAX's": "ValueError: no"}, {"flops": 1e15}
    )
    assert line.split()[:6] == ["hopper_matmul", "4096", "200.0", "100.0", "-", "2.00"]
    assert line.endswith("69 % of flops")


def test_a_side_that_ends_or_hangs_costs_no_other(benchmark, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))  # its processes import it by name
    machine = benchmark.Machine(rounds=1, limit=60)
    assert machine.ask(("no such row", "XLA", None)) == "its process ended"
    assert machine.ask("device") is None  # another process, on a machine without a GPU
    assert benchmark.Machine(rounds=1, limit=0).ask("device") == "no time within 0 s"


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
def test_no_process_is_left_for_multiprocessing_to_terminate(benchmark, monkeypatch):
    """On a machine with a GPU, jaxlib prints a traceback for its SIGTERM."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr(sys, "argv", ["gpu_kernels.py"])
    before = set(multiprocessing.active_children())
    with pytest.raises(SystemExit, match="there is no GPU here"):
        benchmark.main()
    assert set(multiprocessing.active_children()) <= before


def test_xla_is_measured_with_cublas_alone_if_it_takes_too_long(benchmark, monkeypatch):
    def ask(_machine, question):
        _, side, options = question
        return "no time within 5 s" if side == "XLA" and options is None else 1e-4

    monkeypatch.setattr(benchmark.Machine, "ask", ask)
    row = next(row for row in benchmark.rows() if "float8" in row.name)
    assert benchmark.Machine(1, 5).measure(row) == {
        "ours": 1e-4,
        "XLA": 1e-4,
        "XLA with its own kernels": "no time within 5 s",
    }
