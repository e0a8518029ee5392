"""``--pallas-backend``."""

from __future__ import annotations

import pytest

TEST = """
    def test_where(pallas_backend):
        assert pallas_backend.available() is None
"""


@pytest.fixture
def here(project, monkeypatch):
    """A project on a machine without accelerators."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    project.write(test_where=TEST)
    return project


def ids(result: pytest.RunResult) -> list[str]:
    """What is between the brackets of the collected test ids."""
    names = [line for line in result.outlines if line.startswith("test_where.py::")]
    return [name.partition("[")[2].rstrip("]") for name in names]


@pytest.mark.parametrize(
    ("flag", "places"),
    [
        ("auto", ["tpu-sim"]),
        ("interpreters", ["interpret", "tpu-interpret"]),
        ("auto,interpreters", ["tpu-sim", "interpret", "tpu-interpret"]),
        ("all", ["tpu-sim", "interpret", "tpu-interpret"]),
        ("auto,interpret", ["tpu-sim", "interpret"]),
        ("auto,gpu-interpret", ["tpu-sim", "gpu-interpret"]),
        ("auto,gpu-sim", ["tpu-sim", "gpu-sim"]),
        ("gpu-sim:all", [f"gpu-sim:{chip}" for chip in ("a100", "h100", "h200", "b200")]),
        ("tpu-sim,tpu-interpret", ["tpu-sim", "tpu-interpret"]),
        ("tpu-sim:all", [f"tpu-sim:{chip}" for chip in ("v4", "v5e", "v5p", "v6e", "tpu7x")]),
        ("interpret", ["interpret"]),
        ("gpu-interpret,interpret", ["gpu-interpret", "interpret"]),
        ("tpu-interpret:v6e", ["tpu-interpret:v6e"]),
        ("tpu-interpret:v6e, tpu-interpret:v6e", ["tpu-interpret:v6e"]),
        (
            "tpu-interpret:all",
            [f"tpu-interpret:{chip}" for chip in ("v4", "v5e", "v5p", "v6e", "tpu7x")],
        ),
        ("gpu-interpret:h100", ["gpu-interpret:h100"]),
    ],
)
def test_the_flag_selects_backends_of_tests(here, flag, places):
    result = here.run(f"--pallas-backend={flag}", "--collect-only", "-q")
    assert ids(result) == places


def test_all_leaves_out_what_is_not_here_and_says_why(here):
    result = here.spawn("--pallas-backend=all")
    result.assert_outcomes(passed=3)  # this test claims no GPU
    result.stdout.fnmatch_lines(
        [
            "pallas: runs on tpu-sim (as TPU v6 lite), gpu-sim (as NVIDIA H100*), interpret, "
            "tpu-interpret (as *), gpu-interpret (as *)",
            "pallas: without tpu: *finds no TPU, only cpu*",
            "pallas: without gpu: *finds no GPU, only cpu*",
        ]
    )


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_hardware_that_is_not_here_is_a_usage_error(here, platform):
    result = here.spawn(f"--pallas-backend={platform}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stderr.str()
    assert "Traceback" not in text + result.stdout.str()
    assert f"--pallas-backend: backend '{platform}' is not available: " in text
    assert f"finds no {platform.upper()}, only cpu" in text
    assert "Available here: tpu-sim, gpu-sim, interpret, tpu-interpret, gpu-interpret" in text


def test_hardware_in_the_ini_file_is_a_usage_error_too(here):
    here.ini(pallas_backend="tpu:v6e")
    result = here.spawn()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "backend 'tpu:v6e' is not available" in result.stderr.str()


@pytest.mark.parametrize(
    ("flag", "messages"),
    [
        (
            "tpu-interpert",
            [
                "unknown backend 'tpu-interpert'. Did you mean 'tpu-interpret'?",
                "auto, all, interpreters, tpu-sim[:v4|v5e|v5p|v6e|tpu7x], gpu-sim[:a100|h100|h200|",
                "gpu[:a100|h100|h200|b200]",
            ],
        ),
        (
            "tpu-sim:h100",
            ["unknown target 'h100' of backend 'tpu-sim'", "its targets: v4, v5e, v5p, v6e, tpu7x"],
        ),
        ("xyz", ["unknown backend 'xyz'", "Valid: auto, all"]),
        (
            "tpu-interpret:v7",
            [
                "unknown target 'v7' of backend 'tpu-interpret'",
                "its targets: v4, v5e, v5p, v6e, tpu7x, all",
            ],
        ),
        ("interpret:v6e", ["unknown target 'v6e' of backend 'interpret'; its targets: none"]),
        (",", ["no backend chosen", "Valid: auto, all"]),
    ],
)
def test_unknown_names_list_the_valid_ones(here, flag, messages):
    result = here.run(f"--pallas-backend={flag}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stderr.str()
    assert "Traceback" not in text
    for message in messages:
        assert message in text


def test_marks_choose_targets_of_the_simulator(here):
    here.write(
        test_where="""
        import pytest

        @pytest.mark.pallas(targets=["v5e"])
        def test_target(pallas_backend):
            assert pallas_backend.otherwise.target.name == "v5e"

        @pytest.mark.pallas(backends=["tpu-sim", "interpret"])
        def test_name(pallas_backend):
            assert getattr(pallas_backend, "otherwise", None) is None
        """
    )
    assert ids(here.run("--collect-only", "-q")) == ["tpu-sim:v5e", "tpu-sim", "interpret"]
    here.run().assert_outcomes(passed=3)


COPY = """
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def _copy(x_ref, y_ref, o_ref, semaphore):
        pltpu.make_async_copy(x_ref, o_ref, semaphore).start()
        pltpu.make_async_copy(x_ref, o_ref, semaphore).wait()

    def copy(x, y):
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            _copy,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            in_specs=[anywhere, anywhere],
            out_specs=anywhere,
            scratch_shapes=[pltpu.SemaphoreType.DMA],
        )(x, y)
"""

UNKNOWN = """
    from kernels import add
    from pallas_test_support.unknown_primitive import unknown

    def first(x, y):
        return unknown(add(x, y))
"""

ALL_SPECS = ("--pallas-suite=specs", "--pallas-checks=forward", "--pallas-max-examples=1")
INTERPRETED = ["interpret", "tpu-interpret"]


class TestSpecs:
    """Where a spec that the simulator can simulate is run, and one that it cannot."""

    @pytest.fixture(autouse=True)
    def specs(self, here):
        here.write(unknown_to_it=UNKNOWN)
        here.specs(
            'name="add", kernel=add',
            'name="first", kernel=__import__("unknown_to_it").first',
        )

    @pytest.mark.parametrize(
        ("flag", "simulable", "others"),
        [
            ("auto", ["tpu-sim"], INTERPRETED),
            ("all", ["tpu-sim", *INTERPRETED], INTERPRETED),
            ("interpreters", INTERPRETED, INTERPRETED),
            ("auto,interpreters", ["tpu-sim", *INTERPRETED], INTERPRETED),
            ("auto,interpret", ["tpu-sim", "interpret"], INTERPRETED),
            ("tpu-sim", ["tpu-sim"], ["tpu-sim"]),
            ("tpu-sim:v5e,interpret", ["tpu-sim:v5e", "interpret"], ["tpu-sim:v5e", "interpret"]),
        ],
    )
    def test_the_flag_selects_simulators_or_interpreters_of_specs(
        self, here, flag, simulable, others
    ):
        result = here.run(*ALL_SPECS, f"--pallas-backend={flag}", "--collect-only", "-q")
        found = [line.partition("::")[2] for line in result.outlines if "::" in line]
        assert [name for name in found if "gpu-" not in name and "-compile" not in name] == [
            *(f"add-forward[{name}]" for name in simulable),
            *(f"first-forward[{name}]" for name in others),
        ]

    @pytest.mark.parametrize(
        ("mark", "simulable", "others"),
        [
            ('targets=["v5e"]', ["tpu-sim:v5e"], ["interpret", "tpu-interpret:v5e"]),
            ('backends=["tpu-interpret"]', ["tpu-interpret"], ["tpu-interpret"]),
            ('backends=["tpu-sim", "interpret"]', *2 * [["tpu-sim", "interpret"]]),
        ],
    )
    def test_marks_of_a_module(self, here, mark, simulable, others):
        here.write(
            test_all=f"""
            import pytest
            from pytest_pallas import suite

            pytestmark = pytest.mark.pallas({mark})
            test_all = suite("specs")
            """
        )
        result = here.run("--pallas-checks=forward", "--collect-only", "-q", "test_all.py")
        found = [line.rpartition("::")[2] for line in result.outlines if "::" in line]
        assert found == [
            *(f"add-forward[{name}]" for name in simulable),
            *(f"first-forward[{name}]" for name in others),
        ]

    def test_thorough_adds_the_interpreters(self, here):
        words = ("--pallas-suite=specs", "--pallas-checks=forward", "--collect-only", "-q")
        result = here.run(*words, "--pallas-profile=thorough")
        found = [line.partition("::")[2] for line in result.outlines if "::add-forward" in line]
        assert found == [f"add-forward[{name}]" for name in ("tpu-sim", *INTERPRETED)]
        result = here.run(*words, "--pallas-profile=thorough", "--pallas-backend=tpu-sim")
        found = [line.partition("::")[2] for line in result.outlines if "::add-forward" in line]
        assert found == ["add-forward[tpu-sim]"]

    def test_by_name_the_simulator_fails(self, here):
        records = here.records(*ALL_SPECS, "--pallas-backend=tpu-sim")
        assert [(r["kernel"], r["backend"], r["outcome"]) for r in records] == [
            ("add", "tpu-sim", "passed"),
            ("first", "tpu-sim", "failed"),
        ]
        assert "has no rule for the primitive 'unknown'" in records[1]["message"]

    def test_specs_run_on_the_simulator_or_on_interpreters(self, here):
        records = here.records(*ALL_SPECS)
        assert [(r["kernel"], r["backend"], r["outcome"]) for r in records] == [
            ("add", "tpu-sim", "passed"),
            ("first", "interpret", "passed"),
            ("first", "tpu-interpret", "passed"),
        ]

    def test_one_with_a_dma_is_simulated(self, here):
        here.write(copies=COPY)
        here.specs('name="copy", kernel=__import__("copies").copy, reference=lambda x, y: x')
        [record] = here.records(*ALL_SPECS)
        assert (record["backend"], record["outcome"]) == ("tpu-sim", "passed")


PORTABLE = """
    import jax
    from jax.experimental import pallas as pl

    def _add(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] + y_ref[...]

    def add(x, y):
        return pl.pallas_call(_add, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)

    def minus(x, y):
        return add(x, -y)

    def unknown_add(x, y):
        from pallas_test_support.unknown_primitive import unknown

        return unknown(add(x, y))
"""


class TestPortableSpecs:
    """Kernels for both platforms run on both simulators, each function on its own."""

    @pytest.fixture(autouse=True)
    def specs(self, here):
        here.write(portable=PORTABLE)
        both = 'backends=("tpu-sim", "interpret", "gpu-sim", "gpu-interpret")'
        module = '__import__("portable")'
        here.specs(
            f'name="both", kernel={module}.add, {both}',
            f'name="apart", kernel={{"tpu": {module}.add, "gpu": {module}.minus}}, {both}',
            f'name="gpu", kernel={{"gpu": {module}.add}}, backends=("gpu-sim", "gpu-interpret")',
            f'name="lost", kernel={{"gpu": {module}.unknown_add}}, {both}',
        )

    @pytest.mark.parametrize(
        ("flag", "both", "gpu", "lost"),
        [
            ("auto", ["tpu-sim", "gpu-sim"], ["gpu-sim"], ["interpret", "gpu-interpret"]),
            ("gpu-sim:b200", *3 * [["gpu-sim:b200"]]),
            (
                "auto,gpu-interpret",
                ["tpu-sim", "gpu-sim", "gpu-interpret"],
                ["gpu-sim", "gpu-interpret"],
                ["interpret", "gpu-interpret"],
            ),
        ],
    )
    def test_the_flag_selects_backends_by_platform(self, here, flag, both, gpu, lost):
        result = here.run(*ALL_SPECS, f"--pallas-backend={flag}", "--collect-only", "-q")
        found = [line.partition("::")[2] for line in result.outlines if "::" in line]
        assert [name for name in found if "unclaimed" not in name] == [
            *(f"both-forward[{name}]" for name in both),
            *(f"apart-forward[{name}]" for name in both),
            *(f"gpu-forward[{name}]" for name in gpu),
            *(f"lost-forward[{name}]" for name in lost),
        ]

    @pytest.mark.parametrize(
        ("flag", "found"),
        [
            ("auto", ["gpu-sim:b200"]),
            ("gpu-sim", ["gpu-sim:b200"]),
            ("gpu-sim,gpu-sim:b200", ["gpu-sim:b200"]),
            ("gpu-sim:h200", ["gpu-sim:h200"]),
            ("gpu-sim:h100", []),
            ("auto,gpu-interpret", ["gpu-sim:b200", "gpu-interpret"]),
        ],
    )
    def test_a_chip_that_is_not_the_default(self, here, flag, found):
        """A simulator without a chip stands for the first that a spec claims."""
        module = '__import__("portable")'
        here.specs(
            f'name="gpu", kernel={{"gpu": {module}.add}}, '
            'backends=("gpu-sim:b200", "gpu-sim:h200", "gpu-interpret")',
        )
        result = here.run(*ALL_SPECS, f"--pallas-backend={flag}", "--collect-only", "-q")
        names = [line.partition("::")[2] for line in result.outlines if "::" in line]
        wanted = [f"gpu-forward[{name}]" for name in found]
        assert [name for name in names if "unclaimed" not in name] == wanted

    def test_each_simulator_runs_the_kernel_of_its_platform(self, here):
        records = here.records(*ALL_SPECS, "--pallas-backend=tpu-sim,gpu-sim", "-k", "not lost")
        assert [(r["kernel"], r["backend"], r["outcome"]) for r in records] == [
            ("both", "tpu-sim", "passed"),
            ("both", "gpu-sim", "passed"),
            ("apart", "tpu-sim", "passed"),
            ("apart", "gpu-sim", "failed"),
            ("gpu", "tpu-sim", "skipped"),
            ("gpu", "gpu-sim", "passed"),
        ]

    def test_fixtures_run_the_kernel_of_the_backend(self, here):
        here.write(
            test_where="""
            import numpy as np
            import pytest
            from portable import add, minus

            X = np.ones((8, 128), np.float32)

            @pytest.mark.pallas(backends=["tpu-sim", "gpu-sim:a100"])
            def test_both(pallas_backend, pallas_run, pallas_check):
                gpu = pallas_backend.platform == "gpu"
                assert pallas_run(minus if gpu else add, X, X)[0, 0] == (0 if gpu else 2)
                pallas_check(add, X, X, reference=lambda x, y: x + y)
            """,
        )
        records = here.records()
        assert [(r["backend"], r["outcome"]) for r in records] == [
            ("tpu-sim", "passed"),
            ("gpu-sim:a100", "passed"),
        ]


def test_a_test_of_ones_own_that_is_interpreted_says_so_in_its_record(here):
    here.write(
        unknown_to_it=UNKNOWN,
        test_where="""
        import numpy as np
        from kernels import add
        from unknown_to_it import first

        X = np.ones((8, 128), np.float32)

        def test_both(pallas_check):
            pallas_check(add, X, X, reference=lambda x, y: x + y)
            pallas_check(first, X, X, reference=lambda x, y: x + y)
        """,
    )
    simulated, interpreted = here.records()
    assert (simulated["kernel"], simulated["notes"]) == ("add", [])
    assert (interpreted["kernel"], interpreted["backend"]) == ("first", "tpu-sim")
    assert {
        "kind": "run",
        "text": "run on tpu-interpret, because the simulator does not support it yet",
    } in interpreted["notes"]
