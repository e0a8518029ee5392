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
        ("auto", ["interpret", "tpu-interpret"]),
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
def test_choice(here, flag, places):
    result = here.run(f"--pallas-backend={flag}", "--collect-only", "-q")
    assert ids(result) == places


def test_all_leaves_out_what_is_not_here_and_says_why(here):
    result = here.spawn("--pallas-backend=all")
    result.assert_outcomes(passed=2)  # this test claims no GPU
    result.stdout.fnmatch_lines(
        [
            "pallas: runs on interpret, tpu-interpret (as *), gpu-interpret (as *)",
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
    assert "Available here: interpret, tpu-interpret, gpu-interpret" in text


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
                "auto, all, interpret, tpu-interpret[:v4|v5e|v5p|v6e|tpu7x]",
                "gpu[:a100|h100|h200|b200]",
            ],
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
