"""A bad value: exit code 4, one line that says which option and what it takes, no traceback."""

from __future__ import annotations

import pytest

BAD = [
    ("--pallas-devices=0", "must be an integer of at least 1, not '0'"),
    ("--pallas-devices=two", "must be an integer of at least 1, not 'two'"),
    ("--pallas-max-examples=-1", "must be an integer of at least 1, not '-1'"),
    ("--pallas-max-examples=1.5", "must be an integer of at least 1, not '1.5'"),
    ("--pallas-max-bytes=64MB", "must be a number of bytes such as 64MiB, 1GiB or 65536"),
    ("--pallas-seed=-1", "must be an integer of at least 0, not '-1'"),
    ("--pallas-timeout=0", "must be a number of seconds above 0, not '0'"),
    ("--pallas-timeout=nan", "must be a number of seconds above 0, not 'nan'"),
    ("--pallas-timeout=inf", "must be a number of seconds above 0, not 'inf'"),
    ("--pallas-timeout=soon", "must be a number of seconds above 0, not 'soon'"),
    ("--pallas-missing=fail", "must be one of skip, error, not 'fail'"),
    (
        "--pallas-checks=forwards",
        "all, none, forward, gradient, vmap, determinism, immutability, dtype, jit, export",
    ),
    ("--pallas-checks=forward,nope", "unknown 'nope'"),
    ("--pallas-arithmetic=exact", "must be one of chip, float32, not 'exact'"),
    ("--pallas-read-fences=some", "must be one of kernel, all, none, not 'some'"),
    ("--pallas-sanitize=rases", "unknown 'rases'; valid: all, none, races"),
]


def refusal(result: pytest.RunResult) -> str:
    """The one line of a usage error."""
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stderr.str() + result.stdout.str()
    assert "Traceback" not in text
    assert "INTERNALERROR" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("ERROR: ")]
    return line


@pytest.mark.parametrize(("flag", "message"), BAD)
def test_on_the_command_line(project, flag, message):
    line = refusal(project.run(flag))
    assert message in line
    assert flag.partition("=")[0] in line


@pytest.mark.parametrize(("flag", "message"), BAD)
def test_in_the_ini_file(project, flag, message):
    name, _, value = flag.removeprefix("--").partition("=")
    project.ini(**{name.replace("-", "_"): value})
    assert message in refusal(project.run())


def test_the_ini_file_is_named(project):
    project.ini(pallas_devices="many")
    assert "ini value pallas_devices: must be" in refusal(project.run())
    project.ini(pallas_checks="nope")
    assert "pallas_checks" in refusal(project.run())
    project.ini(pallas_sanitize="nope")
    assert "pallas_sanitize" in refusal(project.run())
    project.ini(pallas_backend="nope")
    assert "pallas_backend" in refusal(project.run())


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("max_examples=0", "mark pallas(max_examples=...): must be an integer of at least 1"),
        ("timeout='soon'", "mark pallas(timeout=...): must be a number of seconds above 0"),
        ("missing='no'", "mark pallas(missing=...): must be one of skip, error, not 'no'"),
        ("checks='nope'", "mark pallas(checks=...): unknown 'nope'; valid: all, none, forward"),
        ("sanitize=['nope']", "mark pallas(sanitize=...): unknown 'nope'; valid: all, none, races"),
        (
            "devices=3",
            "the pallas mark has no argument 'devices'; it takes backends, targets, reason, "
            "max_examples, growth, seed, checks, sanitize, arithmetic, read_fences, schedules, "
            "witness, timeout, isolate, shrink_time, missing",
        ),
        ("schedules=0", "mark pallas(schedules=...): must be the most runs of a call, at least 1"),
        ("witness='soon'", "mark pallas(witness=...): 'soon' is no witness"),
        ("backends='nope'", "unknown backend 'nope'. Valid: auto, all, interpret"),
        ("backends='interpret:v6e'", "unknown target 'v6e' of backend 'interpret'"),
        ("targets=['v7']", "the pallas mark names unknown targets ['v7']; known: a100"),
        ("'interpret'", "the pallas mark takes keywords only, such as backends=[...]"),
    ],
)
def test_a_bad_mark_fails_its_own_test_only(project, mark, message):
    """A bad mark fails its own test, whether its value is used or not; others run."""
    project.write(
        test_bad=f"""
        import pytest

        @pytest.mark.pallas({mark})
        def test_bad(pallas_backend): pass
        """,
        test_good="def test_good(pallas_backend): pass",
    )
    result = project.run("--pallas-backend=tpu-sim")
    result.assert_outcomes(passed=1, errors=1)
    text = result.stdout.str()
    assert "Traceback" not in text
    assert "During handling" not in text
    assert message in text
    assert "ERROR test_bad.py::test_bad[" in text


def test_help_lists_every_option_and_its_ini_twin(project):
    from pytest_pallas.options import TABLE

    text = project.run("--help").stdout.str()
    for option in TABLE:
        assert option.flag in text
        assert f"{option.ini} (string):" in text


@pytest.mark.parametrize("backend", ["gpu-sim:new", "gpu-sim:h100,gpu-sim:new"])
def test_the_arithmetic_of_a_named_chip_must_be_known(project, backend):
    project.write(
        test_nothing="def test_nothing(): pass",
        conftest="""
            import dataclasses

            import pytest_pallas
            from pallas_sim.chips import GPUS

            pytest_pallas.add_chip("new", dataclasses.replace(GPUS["b200"], capability=15))
        """,
    )
    line = refusal(project.run("--pallas-arithmetic=chip", f"--pallas-backend={backend}"))
    assert "--pallas-arithmetic: arithmetic='chip': how new adds products is not known" in line
    assert "it is known of a100, h100, h200, b200, v4, v5e, v5p, v6e, tpu7x" in line


@pytest.mark.parametrize("backend", ["auto", "gpu-sim:h100,gpu-sim:a100,tpu-sim:v6e"])
def test_the_arithmetic_of_other_chips(project, backend):
    project.write(test_nothing="def test_nothing(): pass")
    result = project.run("--pallas-arithmetic=chip", f"--pallas-backend={backend}")
    result.assert_outcomes(passed=1)
