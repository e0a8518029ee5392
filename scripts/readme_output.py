"""Put real output into the README and pages of docs: run the commands, fill their blocks.

    uv run python scripts/readme_output.py [NAME ...]

Fills the blocks of these names, or all. A block follows a comment ``<!-- output: NAME -->``. Run it
when output changes; a test compares what does not depend on the machine.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
START = ROOT / "docs/start.md"
BACKENDS = ROOT / "docs/backends.md"
VERIFIED = ROOT / "docs/verified.md"
DOWNSTREAM = ROOT / "examples/downstream/README.md"
COMPILING = ROOT / "docs/compiling.md"
SANITIZERS = ROOT / "docs/sanitizers.md"
MUTATION = ROOT / "docs/mutation.md"
RECIPES = ROOT / "docs/recipes.md"
BARRIERS = ROOT / "docs/barriers.md"
PYTEST = [sys.executable, "-m", "pytest"]


def run(*options: str, folder: Path = ROOT, columns: int = 80, cache: bool = False) -> str:
    """What pytest prints, without the environment's own lines."""
    wide = {**os.environ, "COLUMNS": str(columns)}
    words = PYTEST if cache else [*PYTEST, "-p", "no:cacheprovider"]
    done = subprocess.run([*words, *options], cwd=folder, capture_output=True, text=True, env=wide)
    of_machine = "platform|rootdir|plugins|configfile|testpaths|cachedir"
    return re.sub(
        rf"(?m)^({of_machine}|SKIPPED|XFAIL|=+ short test).*\n",
        "",
        done.stdout + done.stderr,
    )


def from_line(text: str, pattern: str) -> str:
    """The text from the first line that matches."""
    lines = text.strip().splitlines()
    first = next(i for i, line in enumerate(lines) if re.search(pattern, line))
    return "\n".join(lines[first:])


def block(page: Path, name: str) -> str:
    """A Python block of a page, by the file that its first comment names."""
    found = re.search(rf"```python\n(# {re.escape(name)}\n.*?)```", page.read_text(), re.DOTALL)
    assert found is not None
    return found.group(1)


def run_files(files: Mapping[str, str], *options: str, cache: bool = False) -> str:
    """What pytest prints in a folder with these files."""
    with tempfile.TemporaryDirectory() as name:
        for file, text in files.items():
            Path(name, file).write_text(text)
        text = run(*options, folder=Path(name), cache=cache)
        return text.replace(f"{Path(name).resolve()}/", "")


def explained(text: str) -> str:
    """The lines that explain a failure."""
    lines = re.compile(r"E  |replay:|script:|example:")
    return "\n".join(line for line in text.splitlines() if lines.match(line))


def softmax() -> str:
    """The explanation of the README's own example."""
    files = {"test_softmax.py": block(README, "test_softmax.py")}
    return explained(run_files(files, cache=True))


def started(fixed: bool, *options: str) -> str:
    """What pytest prints in the project of docs/start.md, before or after the fix."""
    files = {name: block(START, name) for name in ("kernels.py", "test_matmul.py")}
    if fixed:
        files["kernels_spec.py"] = block(START, "kernels_spec.py")
        for old, new in re.findall(r"```diff\n-(.*\n)\+(.*\n)```", START.read_text()):
            assert old in files["kernels.py"]
            files["kernels.py"] = files["kernels.py"].replace(old, new)
    text = run_files(files, *options, cache=True)
    if fixed:
        return from_line(text, r"^=+ pallas =+$")
    return explained(text)


def refusal() -> str:
    """The example that no compiler takes."""
    files = {"test_scale.py": block(COMPILING, "test_scale.py")}
    option = "--pallas-backend=interpret,tpu-compile:v6e"
    text = run_files(files, option)
    table = from_line(text, r"^=+ pallas =+$")
    return f"$ pytest {option}\n{explained(text)}\n{table}"


def tables() -> str:
    """The example of a spec."""
    files = {"kernels.py": block(COMPILING, "kernels.py")}
    text = run_files(files, "--pallas-backend=tpu-compile:all", "--pallas-suite=kernels")
    return from_line(text, r"^=+ pallas =+$")


def cost() -> str:
    """The spec's kernel after a change that costs: both numbers."""
    kernels = block(COMPILING, "kernels.py")
    changed = kernels.replace("o_ref[...] = e /", "o_ref[...] = jnp.tanh(e) /")
    assert changed != kernels
    options = ["--pallas-backend=tpu-compile:v6e", "--pallas-suite=kernels"]
    with tempfile.TemporaryDirectory() as name:
        options.append("--pallas-checks=forward")
        for text, what in ((kernels, "record"), (changed, "compare")):
            Path(name, "kernels.py").write_text(text)
            printed = run(*options, f"--pallas-cost={what}", folder=Path(name))
    return next(line for line in printed.splitlines() if line.startswith("softmax: forward"))


BIG = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

def one_block(x_ref, y_ref, o_ref):
    o_ref[...] = jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)

def matmul(x, y):
    return pl.pallas_call(
        one_block,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), "float32"),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=120 * 2**20),
    )(x, y)

def test_matmul(pallas_compile):
    x = jax.ShapeDtypeStruct((3072, 3072), "bfloat16")
    pallas_compile(matmul, x, x, target="v6e")
"""


def hang() -> str:
    """A kernel that libtpu works on for minutes."""
    text = run_files({"test_big.py": BIG}, "--pallas-timeout=10")
    table = from_line(text, r"^=+ pallas =+$").partition("\n=")[0]
    return f"{explained(text)}\n{table}"


def sanitized(name: str) -> str:
    """What a sanitizer says of a kernel of its page."""
    files = {"copies.py": block(SANITIZERS, "copies.py")}
    options = ["--pallas-backend=tpu-sim", "--pallas-suite=copies", f"-k={name}"]
    text = run_files(files, *options)
    found = re.search(rf"(?ms)^\w+: {name} on tpu-sim.*?(?=^  replay)", text)
    assert found is not None, text
    return found[0].strip()


def experts() -> str:
    """What the kernel of the page needs."""
    words = ("barriers", "examples/experts/fused_experts.py", "--mesh", "x=8", "--examples", "1")
    command = [sys.executable, "-m", "pytest_pallas", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return f"$ pytest-pallas {' '.join(words)}\n{done.stdout.strip()}"


def recipes() -> dict[str, tuple[str, str]]:
    """The modules of the page of recipes by name: as they stand there, and with the mistake."""
    sections = RECIPES.read_text().split("\n## ")[1:]
    modules = {}
    for section in sections:
        [(name, code)] = re.findall(r"```python\n(?=# (\w+)\.py\n)(.*?)```", section, re.DOTALL)
        [(old, new)] = re.findall(r"```diff\n-(.*\n)(?:\+(.*\n))?```", section)
        assert code.count(old) == 1, name
        modules[name] = (code, code.replace(old, new))
    return modules


def mistaken(name: str, check: str) -> str:
    """The first finding of a check of a recipe with its mistake."""
    files = {f"{name}.py": recipes()[name][1]}
    text = run_files(files, f"--pallas-suite={name}")
    message = re.search(rf"(?ms)^\w+: {check} on .*?(?=^  (?:ids|replay) )", text)
    assert message is not None, text
    return re.split(r"(?m)^  (?=race on|device \d+ signals)", message[0])[0].strip()


def survivors() -> str:
    """What the test of the page lets through."""
    text = run_files(
        {"test_scale.py": block(MUTATION, "test_scale.py")},
        "--pallas-mutate=all",
        "--pallas-backend=tpu-sim",
        "test_scale.py",
    )
    found = re.search(r"(?ms)^mutants$.*?^score .*?$", text)
    assert found is not None, text
    return found[0]


def command(*options: str) -> str:
    """A command as one types it, and what it prints."""
    return "$ uv run pytest " + " ".join(options) + "\n" + run(*options).strip()


def suite(*options: str, columns: int = 80) -> str:
    """The end of a run of specs."""
    return from_line(run(*options, columns=columns), r"^=+ pallas =+$")


def main_job() -> str:
    """The end of the main job."""
    return suite(
        "-n", "2", "--pallas-suite=reference_kernels", "--pallas-profile=quick", columns=100
    )


#: What makes the output of each block, by page and name.
BLOCKS: Mapping[Path, Mapping[str, Callable[[], str]]] = {
    README: {"softmax": softmax},
    VERIFIED: {"main": main_job},
    START: {
        "bug": lambda: started(False),
        "fixed": lambda: started(True),
        "spec": lambda: started(True, "--pallas-suite=kernels"),
    },
    BACKENDS: {
        "matmul": lambda: command(
            "--pallas-backend=tpu-sim:v6e", "--pallas-suite=reference_kernels.matmul.matmul"
        ),
        "tpu": lambda: command("--pallas-backend=tpu") + "\n$ echo $?\n4",
    },
    DOWNSTREAM: {
        "downstream": lambda: from_line(
            run(folder=ROOT / "examples/downstream"), r"^=+ pallas =+$"
        ),
    },
    COMPILING: {
        "refusal": refusal,
        "tables": tables,
        "gpu": lambda: suite(
            "--pallas-backend=gpu-compile:all",
            "--pallas-suite=reference_kernels.mosaic_gpu.tma_copy_add",
        ),
        "cost": cost,
        "hang": hang,
    },
    SANITIZERS: {
        name: functools.partial(sanitized, name)
        for name in ("races", "dma", "deadlock", "schedule", "memory", "donation")
    },
    MUTATION: {"survivors": survivors},
    BARRIERS: {"experts": experts},
    RECIPES: {
        name: functools.partial(mistaken, name, "grid" if name == "accumulate" else "forward")
        for name in recipes()
    },
}


def main() -> None:
    """Fill the blocks that were named, or all."""
    for page, blocks in BLOCKS.items():
        for name, make in blocks.items():
            if sys.argv[1:] and name not in sys.argv[1:]:
                continue
            output = make()
            pattern = rf"(<!-- output: {name} -->\n```\w+\n).*?(```)"
            text, count = re.subn(
                pattern,
                lambda m, o=output: m[1] + o + "\n" + m[2],
                page.read_text(),
                flags=re.DOTALL,
            )
            assert count == 1, name
            page.write_text(text)


if __name__ == "__main__":
    main()
