"""Where the report of a failed spec says that the failure is: CI puts its annotations there."""

from __future__ import annotations

#: What annotates failures does: pytest-github-actions-annotate-failures 0.4 reads the same fields.
ANNOTATE = """
    def pytest_runtest_logreport(report):
        if report.when == "call" and report.failed:
            path, line, name = report.location
            with open("annotated.txt", "a") as file:
                file.write(f"{path}:{line + 1} {name} {type(report.longrepr).__name__}\\n")
"""


def test_at_the_kernel(project):
    project.specs(
        'name="off", kernel=add_off, checks=("forward",)',
        'name="raises", kernel=add_raises, checks=("forward",)',
        'name="jitted", kernel=jax.jit(add_off), checks=("forward",)',
        'name="partly", kernel=functools.partial(add_off), checks=("forward",)',
    )
    specs = project.path / "specs.py"
    specs.write_text("import functools\nimport jax\n" + specs.read_text())
    project.write(conftest=ANNOTATE)
    project.run("--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-max-examples=1")
    source = (project.path / "kernels.py").read_text().splitlines()
    off, raises = (
        source.index(f"def {name}(x: Any, y: Any) -> Any:") + 1
        for name in ("add_off", "add_raises")
    )
    found = set((project.path / "annotated.txt").read_text().splitlines())
    assert found == {
        f"kernels.py:{off} off-forward[tpu-sim] str",
        f"kernels.py:{raises} raises-forward[tpu-sim] str",
        f"kernels.py:{off} jitted-forward[tpu-sim] str",
        f"kernels.py:{off} partly-forward[tpu-sim] str",
    }


def test_a_kernel_from_elsewhere_is_at_its_spec(project):
    """No pull request changes it."""
    project.specs(
        'name="elsewhere", kernel=lambda x, y: jnp.add(x, y), checks=("forward",)',
        'name="installed", kernel=jnp.add, checks=("forward",)',
    )
    specs = project.path / "specs.py"
    specs.write_text("import jax.numpy as jnp\n" + specs.read_text())
    project.write(conftest=ANNOTATE)
    project.run("--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-max-examples=1")
    found = (project.path / "annotated.txt").read_text().splitlines()
    assert {line.partition(":")[0] for line in found} == {"specs.py"}
