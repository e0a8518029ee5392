"""The command ``pytest-pallas new``: what it writes and prints, and wrong input."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from pallas_test_support.forked_python import run_python

from pytest_pallas.__main__ import main
from pytest_pallas.scaffold_read import Described, described

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty current folder, with ``sys.path`` as it was afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """``python -m pytest_pallas`` with these words, where ``kernels_to_guess`` can be imported."""
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    return run_python("-m", "pytest_pallas", *words, cwd=folder, env=environment)


def test_a_module_is_written_and_run(folder):
    done = run(folder, "new", "kernels_to_guess:double")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrote tests/test_double_kernel.py" in done.stdout
    assert "1 kernel without failures" in done.stdout
    assert "FILL IN" not in done.stdout
    assert "SPEC = KernelSpec(" in (folder / "tests/test_double_kernel.py").read_text()


def test_without_a_reference_the_run_fails_and_says_what_to_fill_in(folder):
    done = run(folder, "new", "kernels_to_guess:swish")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "FILL IN the reference: the same function in jnp; is it jax.nn.swish?" in done.stdout
    assert "NotImplementedError: FILL IN the reference of swish" in done.stdout
    assert "passed" not in done.stdout


def test_a_module_of_the_current_folder(folder, capsys):
    (folder / "own").mkdir()
    (folder / "own/__init__.py").write_text("")
    text = "from kernels_to_guess import double, double_ref\n"
    (folder / "own/kernel_module.py").write_text(text)
    assert main(["new", "own/kernel_module.py:double", "--no-run", "-o", "a/b/test_it.py"]) == 0
    assert capsys.readouterr().out.endswith("run it: python -m pytest a/b/test_it.py\n")
    assert "from own.kernel_module import double" in (folder / "a/b/test_it.py").read_text()


def test_nothing_is_overwritten_without_force(folder, capsys):
    words = ["new", "kernels_to_guess:double", "--no-run"]
    path = folder / "tests/test_double_kernel.py"
    path.parent.mkdir()
    path.write_text("mine")
    assert main(words) == 2
    assert "tests/test_double_kernel.py exists; give --force" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert main([*words, "--force"]) == 0
    assert "KernelSpec" in path.read_text()


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("no_such_module:f", "there is no module 'no_such_module'"),
        ("kernels_to_guess.inner:f", "there is no module 'kernels_to_guess.inner'"),
        ("kernels_to_guess:doubel", "has no function 'doubel'; did you mean double?"),
        ("kernels_to_guess:zzz", "has no function 'zzz'; it has double, double_ref, matmul"),
        ("kernels_to_guess:CONSTANT", "is a value of type int, not a function"),
        ("kernels_to_guess:Thing", "is a class, not a function"),
        ("kernels_to_guess", "names no function; write MODULE:FUNCTION"),
        ("kernels_to_guess:", "names no function"),
        ("imports_nothing:f", "it imports nothing_at_all, which is not installed"),
        ("raises:f", "importing raises raised RuntimeError: no"),
    ],
)
def test_wrong_targets(folder, capsys, target, words):
    (folder / "imports_nothing.py").write_text("import nothing_at_all\n")
    (folder / "raises.py").write_text("raise RuntimeError('no')\n")
    assert main(["new", target]) == 2
    text = capsys.readouterr().err
    assert text.startswith("pytest-pallas: ")
    assert words in text
    assert not (folder / "tests").exists()


def test_a_file_that_pytest_would_not_take(capsys):
    assert main(["new", "kernels_to_guess:double", "-o", "x.txt"]) == 2
    assert "a test module ends in .py, such as x.py" in capsys.readouterr().err


def test_the_console_script_and_help(capsys):
    [script] = metadata.entry_points(group="console_scripts", name="pytest-pallas")
    assert script.load() is main
    for words in (["--help"], ["new", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
    assert "MODULE:FUNCTION" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2


def test_help_does_not_import_jax():
    code = (
        "import sys\nfrom pytest_pallas.__main__ import main\n"
        "try:\n    main(['new', '--help'])\nexcept SystemExit:\n    pass\n"
        "assert not {'jax', 'numpy', 'hypothesis'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Args:\n  x: of shape [m, k], bfloat16.", {"x": Described(("m", "k"), ("bfloat16",))}),
        ("x : (8, n) float32", {"x": Described(("8", "n"), ("float32",))}),
        (":param x: (b, 2*h)", {"x": Described(("b", ""))}),
        ("x, y: (m n) or (m,)", {"x": Described(("m",)), "y": Described(("m",))}),
        ("``x``: float32[m, n]", {"x": Described(("m", "n"), ("float32",))}),
        ("x (optional): an array", {}),
        ("x: what is doubled\n\n(a, b)", {}),
        ("x: m x n in words, [m x n]", {"x": Described(("m", "n"))}),
        ("Adds x and y (see [above]).", {}),
        (None, {}),
    ],
)
def test_shapes_in_docstrings(text, wanted):
    assert described(text, ["x", "y"]) == wanted
