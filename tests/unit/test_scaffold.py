"""The command ``pytest-pallas new``: what it writes and prints, and wrong input."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import pytest
from pallas_test_support.forked_python import run_python

from pytest_pallas.__main__ import main
from pytest_pallas.scaffold_read import Described, described, mentioned_dtypes

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
    ("layout", "words"),
    [
        ("mine.py", []),
        ("src/mine.py", ["-o", "pythonpath=src"]),
        ("lib/mine/__init__.py", []),  # of pytest's ini value
    ],
)
def test_what_is_printed_runs_where_it_is_printed(folder, layout, words):
    """The module is imported from the current folder, ``src``, or a folder of pytest's ini file."""
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = lib\n" if "lib" in layout else "")
    (folder / layout).parent.mkdir(parents=True, exist_ok=True)
    text = (SUPPORT / "kernels_to_guess.py").read_text()
    (folder / layout).write_text(text)
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    command = ("-m", "pytest_pallas", "new", "mine:swish")
    done = run_python(*command, cwd=folder, env=environment)
    lines = done.stdout.splitlines()
    printed = shlex.join(["python", "-m", "pytest", *words, "tests/test_swish_kernel.py"])
    assert f"$ {printed} --pallas-profile=quick" in lines
    (replay,) = (line.split("pytest ", 1)[1] for line in lines if line.startswith("  replay"))
    script = Path(sys.executable).with_name("pytest")
    again = subprocess.run(
        [script, *shlex.split(replay), "-q"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert "FILL IN the reference of swish" in again.stdout


@pytest.mark.parametrize(
    ("output", "words"), [("read/test_x.py", "read-only"), ("mine/test_x.py", "no folder")]
)
def test_a_folder_that_cannot_be_written(folder, capsys, monkeypatch, output, words):
    """It is said before the function is traced, and with a folder that can be written."""
    (folder / "read").mkdir()
    (folder / "mine").write_text("")
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder / "read")
    assert main(["new", "kernels_to_guess:double", "-o", output]) == 2
    text = capsys.readouterr().err
    assert f"{output} cannot be written: {folder}" in text
    assert words in text
    assert f"-o {Path(tempfile.gettempdir()) / 'test_x.py'}" in text


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


def test_the_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"pytest-pallas {metadata.version('pytest-pallas')}\n"


def test_help_does_not_import_jax():
    code = (
        "import sys\nfrom pytest_pallas.__main__ import main\n"
        "for words in (['new', '--help'], ['--version']):\n"
        "    try:\n        main(words)\n    except SystemExit:\n        pass\n"
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
        (
            "x (m, n) plus y [n], in place",
            {"x": Described(("m", "n")), "y": Described(("n",))},
        ),
        (None, {}),
    ],
)
def test_shapes_in_docstrings(text, wanted):
    assert described(text, ["x", "y"]) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Doubles a float32 array.", ("float32",)),
        ("x @ y for bf16 or fp16, summed in float32; returns float32", ("bfloat16", "float16")),
        ("Casts to int8.", ()),
        (None, ()),
    ],
)
def test_dtypes_in_sentences(text, wanted):
    assert mentioned_dtypes(text) == wanted
