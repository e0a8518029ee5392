"""``project.spawn`` forks a process that has imported JAX; a test sees no difference."""

TEST = """
    import os
    import sys
    from pathlib import Path

    from hypothesis.configuration import storage_directory

    FOLDER = Path(__file__).parent

    def test_it():
        assert os.environ["HERE_ONLY"] == "yes"
        assert "OPENBLAS_NUM_THREADS" not in os.environ
        assert Path.cwd() == FOLDER
        assert sys.path[0] == str(FOLDER)
        assert sys.argv[-1] == "test_it.py"
        assert sys.stdin.read() == ""
        storage = storage_directory()  # a path in older versions
        assert getattr(storage, "path", storage) == FOLDER / ".hypothesis"

    def test_it_ends():
        os.kill(os.getpid(), 9)
"""

#: Run before plugins are loaded.
EARLY = """
    import sys

    assert "jax" in sys.modules
"""


def test_a_fork_is_as_a_new_process(project, monkeypatch):
    monkeypatch.setenv("HERE_ONLY", "yes")
    project.write(test_it=TEST, early=EARLY)
    words = ("-p", "early", "-s", "test_it.py")
    result = project.spawn("-k", "not ends", *words, ours=False)
    result.assert_outcomes(passed=1, deselected=1)
    assert project.spawn("-k", "ends", *words, ours=False).ret == -9
