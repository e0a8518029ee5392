"""A bad value: exit code 4, one line that says which option and what it takes, no traceback."""

from __future__ import annotations

import pytest

BAD = [
    ("--pallas-devices=0", "must be a whole number of at least 1, not '0'"),
    ("--pallas-devices=two", "must be a whole number of at least 1, not 'two'"),
    ("--pallas-max-examples=-1", "must be a whole number of at least 1, not '-1'"),
    ("--pallas-max-examples=1.5", "must be a whole number of at least 1, not '1.5'"),
    ("--pallas-seed=-1", "must be a whole number of at least 0, not '-1'"),
    ("--pallas-timeout=0", "must be a number of seconds above 0, not '0'"),
    ("--pallas-timeout=nan", "must be a number of seconds above 0, not 'nan'"),
    ("--pallas-timeout=inf", "must be a number of seconds above 0, not 'inf'"),
    ("--pallas-timeout=soon", "must be a number of seconds above 0, not 'soon'"),
    ("--pallas-missing=fail", "must be one of skip, error, not 'fail'"),
    ("--pallas-checks=forwards", "all, none, forward, gradient, vmap, determinism, immutability"),
    ("--pallas-checks=forward,nope", "unknown 'nope'"),
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


def test_marks(project):
    project.write(
        test_marks="""
        import pytest

        @pytest.mark.pallas(max_examples=0)
        def test_bad_value(pallas_backend): pass

        @pytest.mark.pallas(devices=3)
        def test_not_for_marks(pallas_backend): pass

        @pytest.mark.pallas(timeout="soon")
        def test_without_fixture_arguments(pallas_rng): pass

        def test_good(pallas_backend): pass
        """
    )
    result = project.run("--pallas-backend=interpret")
    text = result.stdout.str()
    assert "INTERNALERROR" not in text
    assert "mark pallas(max_examples=...): must be a whole number of at least 1, not '0'" in text
    assert "the pallas mark has no argument 'devices'" in text
    assert "mark pallas(timeout=...): must be a number of seconds above 0" in text
    assert "test_marks.py" in text


def test_help_lists_every_option_and_its_ini_twin(project):
    from pytest_pallas.options import TABLE

    text = project.run("--help").stdout.str()
    for option in TABLE:
        assert option.flag in text
        assert f"{option.ini} (string):" in text
