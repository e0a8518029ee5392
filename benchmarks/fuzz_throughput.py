"""Fuzzing against the obvious hand-written test: examples a minute, and time to the first failure.

    uv run python benchmarks/fuzz_throughput.py examples [seconds]    correct kernels, 30 s each
    uv run python benchmarks/fuzz_throughput.py failures [seconds]    wrong ones, up to 30 s each

The hand-written test is ``@given`` sizes, ``force_tpu_interpret_mode`` and ``assert_allclose``
against jnp, on each of JAX's interpreters. For ``examples`` it draws whole blocks, 1 to 6 a side,
as most such tests do, and in a second run from the strategy of the spec; ours runs
``--pallas-fuzz-time`` with the check ``forward`` on the simulator. Rates are by processor time, so
that what else runs on the machine matters less. Shapes are different ones ("Distinct shapes" in
docs/reference.md), siblings not counted. For ``failures`` both draw from the strategy of the spec,
and run on the same interpreter; ours runs every check, as it does by default. Times begin when the
test does, after imports and collection. All run one after the other, each in a process of its own.
Targets: 30 times the examples (better 60) and 10 times the different shapes, on both interpreters,
and at least as many wrong kernels in the same time.

Measured on 27 November 2026 on 2 cores with JAX 0.12.0.1, 10 s each in one run, with a load of 25:
the ratios compare runs under the same load, and the rates are lower than on an idle machine. A
minute of processor time. By hand first with whole blocks, then as the spec draws:

| | ours | interpret | tpu-interpret |
| --- | --- | --- | --- |
| matmul, examples | 3,645 | 18.5x, 16.6x | 31.0x, 47.3x |
| softmax, examples | 1,991 | 16.2x, 12.5x | 27.6x, 25.7x |
| flash_attention, examples | 689 | 10.7x, 19.7x | 13.1x, 22.0x |
| matmul, shapes | 3,070 | 15.5x, 14.0x | 26.1x, 39.8x |
| softmax, shapes | 1,991 | 16.2x, 18.8x | 27.6x, 25.7x |
| flash_attention, shapes | 689 | 10.7x, 19.7x | 13.1x, 22.0x |

The target of shapes is met. That of examples is met on ``tpu-interpret`` for matmul only: as long
as there are new shapes, nearly every example has one, and each is traced. In runs with siblings of
each draw, on 23 November, examples were 32 to 61 times and shapes 5 to 7 times as many.

Pairs of choices that came together, of those possible (``pairs``; by hand as the spec draws, since
whole blocks are no choices of it), in the same run:

| | ours | interpret | tpu-interpret |
| --- | --- | --- | --- |
| matmul | 280 of 335 | 34 | 15 |
| softmax | 80 of 125 | 12 | 6 |
| flash_attention | 96 of 122 | 21 | 21 |

``failures`` was measured on 21 November 2026, 10 s each: of 37 specs in ``tests/broken``, two of
them right, the test by hand finds 13 on ``interpret`` and 16 on ``tpu-interpret``, ours 29 and 32;
of those that both find, most a little sooner. Two were found later: one wrong without jit, which by
hand is the only way, and a spec that is too loose, which is said after its last example.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BROKEN = ROOT / "tests" / "broken"
BACKENDS = ("interpret", "tpu-interpret")

#: Where ours runs, for ``examples``.
SIMULATOR = "tpu-sim"

#: Where the plugin below writes what it saw.
SEEN = "BENCHMARK_SEEN"

#: The kernel whose checks it lets through.
KERNEL = "BENCHMARK_KERNEL"

#: Module of the spec, and sides of its operands: a number is a block of it, a letter a drawn count.
KERNELS = {
    "matmul": ("reference_kernels.matmul.matmul_spec", ["m16 k128", "k128 n128"]),
    "softmax": ("reference_kernels.reductions.softmax_spec", ["m8 n128"]),
    "flash_attention": (
        "reference_kernels.attention.flash_attention_spec",
        ["q128 d64", "k128 d64", "k128 d64"],
    ),
}


class TimeIsOver(BaseException):
    """Ends a hand-written test; hypothesis lets it through."""


def hand_written(seconds: float, backend: str, kernel: Any, reference: Any, strategy: Any) -> Any:
    """Examples, different shapes, seconds and whether one failed, of a hand-written test.

    ``strategy`` draws ``(args, options, tuning, drawn)``, the last one as the spec draws, or None.
    """
    import hypothesis
    import jax
    import numpy as np
    from jax.experimental.pallas import tpu as pltpu

    from pytest_pallas.checks.inputs import inputs_of
    from pytest_pallas.strategies import Arguments

    mode = True if backend == "interpret" else pltpu.InterpretParams()
    started, examples, shapes, inputs = time.perf_counter(), 0, set[str](), list[Any]()
    before = time.process_time()

    @hypothesis.settings(
        max_examples=10**6,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(call=strategy)
    def test(call: Any) -> None:
        nonlocal examples
        if time.perf_counter() - started > seconds:
            raise TimeIsOver
        args, options, tuning, drawn = call
        with pltpu.force_tpu_interpret_mode(mode):
            actual = jax.block_until_ready(kernel(*args, **options, **tuning))
        examples += 1
        inputs.append(inputs_of(drawn or Arguments(args, options, tuning)))
        shapes.add(inputs[-1].signature)
        expected = reference(*args, **options)
        for got, wanted in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
            loose = got.dtype not in (np.float32, np.float64)
            np.testing.assert_allclose(
                np.asarray(got, np.float64),
                np.asarray(wanted, np.float64),
                rtol=2e-2 if loose else 1e-4,
                atol=2e-2 if loose else 1e-4,
            )

    failed = False
    try:
        test()
    except TimeIsOver:
        pass
    except Exception:  # whatever it raises is a failure
        failed = True
    return {
        "examples": examples,
        "shapes": len(shapes),
        "pairs": pairs_of(inputs),
        "seconds": time.perf_counter() - started,
        "processor": time.process_time() - before,
        "failed": failed,
    }


def pairs_of(inputs: Any) -> str:
    """Pairs of choices that came together, of those that the spec's strategy has."""
    from pytest_pallas.checks.inputs import to_json

    together, possible = to_json(inputs).get("pairs", (0, 0))
    return f"{together}/{possible}" if possible else ""


def drawn_by_hand(name: str) -> tuple[Any, Any, Any]:
    """Kernel, reference and strategy of the hand-written test of a correct kernel."""
    import importlib

    import jax.numpy as jnp
    import numpy as np
    from hypothesis import strategies as st

    path, shapes = KERNELS[name]
    module = importlib.import_module(path)
    spec = module.SPEC
    letters = sorted({side[0] for shape in shapes for side in shape.split()})

    @st.composite
    def calls(draw: Any) -> Any:
        counts = {letter: draw(st.integers(1, 1 if letter == "d" else 6)) for letter in letters}
        rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        dtype = draw(st.sampled_from([jnp.float32, jnp.bfloat16]))
        made = [
            jnp.asarray(
                rng.standard_normal([counts[side[0]] * int(side[1:]) for side in shape.split()]),
                dtype,
            )
            for shape in shapes
        ]
        tuning = {"block_m": 16, "block_n": 128, "block_k": 128} if name == "matmul" else {}
        return made, {}, tuning, None

    return spec.kernel, spec.reference, calls()


def drawn_by_spec(name: str) -> tuple[Any, Any, Any]:
    """Kernel, reference and strategy of a hand-written test that draws from the spec's strategy."""
    import importlib

    import jax
    import jax.numpy as jnp

    from pytest_pallas.strategies import as_arguments

    correct = name in KERNELS
    spec = importlib.import_module(KERNELS[name][0]).SPEC if correct else specs()[name]

    def taken_apart(drawn: Any) -> Any:
        call = as_arguments(drawn)
        return jax.tree.map(jnp.asarray, call.args), call.options, call.tuning, call

    return spec.kernel, spec.reference, spec.inputs.map(taken_apart)


def specs() -> dict[str, Any]:
    """The specs of the wrong kernels, by name."""
    sys.path.insert(0, str(BROKEN))
    from pytest_pallas.run.collection import suite

    return {spec.name: spec for spec in suite("wrong_kernels").specs()}


def pytest_configure() -> None:
    """As a plugin of our runs: note when the first test starts, and when an example first fails."""
    from pytest_pallas.run import drawn
    from pytest_pallas.run.item import SpecItem

    path, ask = Path(os.environ[SEEN]), drawn.run_example
    run = SpecItem.runtest
    seen: dict[str, Any] = {"examples": 0, "shapes": 0, "failed": False}
    shapes = set[str]()
    inputs = list[Any]()
    started = noted = before = 0.0

    def note(*, failed: bool = False) -> None:
        nonlocal noted
        now = time.perf_counter()
        if not seen["failed"] and (failed or now - noted > 0.05):
            noted = now
            seen.update(failed=failed, seconds=now - started, shapes=len(shapes))
            seen["processor"] = time.process_time() - before
            write(path, seen)

    def timed(*args: Any, **rest: Any) -> None:
        nonlocal started, before
        started = started or time.perf_counter()
        before = before or time.process_time()
        try:
            ask(*args, **rest)
        except Exception:
            note(failed=True)
            raise
        finally:
            seen["examples"] += 1
            inputs.extend(args[0].result.inputs[-1:])
            shapes.update(call.signature for call in inputs[-1:])
            note()

    def running(item: SpecItem) -> None:
        try:
            run(item)
        except Exception:  # also what is wrong over all examples
            note(failed=True)
            raise

    drawn.run_example, SpecItem.runtest = timed, running

    def finish() -> None:
        seen["pairs"] = pairs_of(inputs)
        write(path, seen)

    atexit.register(finish)


def write(path: Path, seen: Any) -> None:
    """Write what was seen, as a whole: another process reads it at any time."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(seen))
    part.replace(path)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """As a plugin of our runs: keep the items of one kernel."""
    if KERNEL in os.environ:
        items[:] = [item for item in items if item.spec.name == os.environ[KERNEL]]


def ours(folder: Path, kernel: str, *words: str, limit: float) -> Any:
    """What the plugin saw in a run of pytest with these arguments."""
    with tempfile.TemporaryDirectory() as name:
        seen = Path(name) / "seen.json"
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "fuzz_throughput"]
        environment = os.environ | {
            SEEN: str(seen),
            KERNEL: kernel,
            "PYTHONPATH": str(Path(__file__).parent),
            "JAX_PLATFORMS": "cpu",
        }
        process = subprocess.Popen(
            [*command, "-p", "no:cacheprovider", *words],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + limit + 120  # for imports and collection
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
            if seen.exists() and json.loads(seen.read_text() or "{}").get("failed"):
                break  # the rest is shrinking
        process.kill()
        process.wait()
        return json.loads(seen.read_text()) if seen.exists() else {"examples": 0, "failed": False}


def theirs(how: str, name: str, backend: str, seconds: float) -> Any:
    """What the hand-written test of a kernel found; one that hangs is ended."""
    command = [sys.executable, __file__, how, name, backend, str(seconds)]
    try:
        done = subprocess.run(
            command,
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds + 60,
        )
    except subprocess.TimeoutExpired:
        return {"examples": 0, "shapes": 0, "seconds": seconds, "failed": False}
    return json.loads(done.stdout.splitlines()[-1])


def examples(seconds: float) -> None:
    """Print examples and shapes a minute of correct kernels, both ways, ratios, and pairs."""
    print("a minute of processor time; a ratio is ours by that of the test by hand", flush=True)
    head = f"{'kernel':<16}{'':<46}{'examples':>10}{'ratio':>8}{'shapes':>10}{'ratio':>8}"
    print(f"{head}{'pairs':>12}")
    for name, (module, _) in KERNELS.items():
        found = ours(
            ROOT,
            name,
            f"--pallas-suite={module}",
            f"--pallas-backend={SIMULATOR}",
            "--pallas-checks=forward",
            f"--pallas-fuzz-time={seconds}",
            limit=seconds,
        )
        rates = [60 * found[word] / found["processor"] for word in ("examples", "shapes")]
        title = f"ours on {SIMULATOR}"
        rated = f"{rates[0]:>10.0f}{'':>8}{rates[1]:>10.0f}{'':>8}"
        print(f"{name:<16}{title:<46}{rated}{found['pairs']:>12}", flush=True)
        for how, title in (("by-hand", "by hand"), ("by-spec", "by hand, drawn as the spec draws")):
            for backend in BACKENDS:
                by_hand = theirs(how, name, backend, seconds)
                words = f"{'':<16}{title + ', ' + backend:<46}"
                for rate, word in zip(rates, ("examples", "shapes"), strict=True):
                    other = 60 * by_hand[word] / by_hand["processor"]
                    words += f"{other:>10.1f}{rate / other if other else float('inf'):>8.1f}"
                print(f"{words}{by_hand.get('pairs', ''):>12}", flush=True)


def failures(seconds: float) -> None:
    """Print when each wrong kernel first fails, both ways."""
    print("seconds to the first failure")
    print(f"{'kernel':<32}{'backend':<16}{'by hand':>10}{'ours':>10}")
    with tempfile.TemporaryDirectory() as name:
        project = Path(name)  # a project of its own, without this one's settings
        (project / "pytest.ini").write_text("[pytest]\n")
        shutil.copytree(BROKEN / "wrong_kernels", project / "wrong_kernels")
        for backend in BACKENDS:
            _failures(project, backend, seconds)


def _failures(project: Path, backend: str, seconds: float) -> None:
    found_by_hand = found_by_us = 0
    for name, spec in specs().items():
        module = "wrong_kernels." + Path(spec.file).stem
        by_hand = theirs("by-spec", name, backend, seconds)
        found = ours(
            project,
            name,
            f"--pallas-suite={module}",
            f"--pallas-backend={backend}",
            "--pallas-timeout=3",
            limit=seconds,
        )
        if found["failed"] and found["seconds"] > seconds:
            found["failed"] = False
        found_by_hand += by_hand["failed"]
        found_by_us += found["failed"]
        words = [f"{x['seconds']:.1f}" if x["failed"] else "-" for x in (by_hand, found)]
        print(f"{name:<32}{backend:<16}{words[0]:>10}{words[1]:>10}", flush=True)
    print(f"{'found':<32}{backend:<16}{found_by_hand:>10}{found_by_us:>10}", flush=True)


def main() -> None:
    """Run what the command line asks for."""
    how, *rest = sys.argv[1:] or [""]
    ways: dict[str, Callable[[str], Any]] = {"by-hand": drawn_by_hand, "by-spec": drawn_by_spec}
    if how in ways:
        name, backend, seconds = rest
        print(json.dumps(hand_written(float(seconds), backend, *ways[how](name))))
    elif how in ("examples", "failures"):
        {"examples": examples, "failures": failures}[how](float(rest[0]) if rest else 30.0)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
