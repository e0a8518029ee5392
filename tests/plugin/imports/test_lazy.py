"""Whoever does not test Pallas kernels does not pay for the plugin."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

HEAVY = ("jax", "jaxlib", "numpy", "ml_dtypes", "hypothesis", "rich")


@pytest.mark.parametrize("module", ["pytest_pallas", "pytest_pallas.plugin"])
def test_an_import_of_the_package_loads_no_heavy_module(module):
    code = f"import sys, {module}; print(sorted(set({HEAVY}) & sys.modules.keys()))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "module", ["pytest_pallas.run.collection", "pytest_pallas.mutate.own_tests"]
)
def test_a_controller_of_xdist_need_not_import_jax(module):
    """It collects nothing, and its workers start after it has read the options."""
    code = f"import sys, {module}; print(sorted({{'jax', 'hypothesis'}} & sys.modules.keys()))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("options", [(), ("--pallas-checks=forward", "--pallas-sanitize=races")])
def test_a_run_without_pallas(project, monkeypatch, options):
    """With only this plugin loaded: hypothesis' own imports hypothesis for its own reasons."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    project.write(
        test_plain=f"""
        import sys

        import pytest

        @pytest.mark.parametrize("n", [1, 2])
        def test_plain(n, tmp_path):
            assert not set({HEAVY}) & sys.modules.keys()
        """
    )
    result = project.spawn("-p", "pytest_pallas.plugin", *options, fresh=True)
    result.assert_outcomes(passed=2)
    assert "plugins: pallas" in result.stdout.str() or "pallas: jax" in result.stdout.str()


def test_every_public_name_can_be_imported():
    import pytest_pallas

    for name in pytest_pallas.__all__:
        assert getattr(pytest_pallas, name) is not None
    assert dir(pytest_pallas) == pytest_pallas.__all__
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        pytest_pallas.nothing  # noqa: B018


#: All that a run without a Pallas test imports of this package.
FEW = {
    "pytest_pallas",
    "pytest_pallas._version",
    "pytest_pallas.plugin",
    "pytest_pallas.hookspecs",
    "pytest_pallas.backends",
    "pytest_pallas.backends.devices",
    "pytest_pallas.fixtures",
    "pytest_pallas.options",
}


@pytest.mark.parametrize("beside", [(), ("_hypothesis_pytestplugin", "xdist.plugin")])
def test_a_run_without_pallas_imports_few_modules(tmp_path, beside):
    (tmp_path / "test_plain.py").write_text(
        "import sys\n\ndef test_plain(tmp_path):\n"
        '    print("ours", *(name for name in sys.modules if "pytest_pallas" in name))\n'
    )
    plugins = [word for name in ("pytest_pallas.plugin", *beside) for word in ("-p", name)]
    out = subprocess.run(
        [sys.executable, "-m", "pytest", "-s", *plugins],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    [line] = [line for line in out.stdout.splitlines() if "ours" in line]
    assert set(line.partition("ours")[2].split()) == FEW


@pytest.fixture(scope="module")
def modules_of_a_small_run(tmp_path_factory):
    """The modules of this package after one ``pallas_check`` for a TPU, by name: their loader."""
    folder = tmp_path_factory.mktemp("small_run")
    (folder / "test_one.py").write_text(
        "import jax, sys\n"
        "import numpy as np\n"
        "from jax.experimental import pallas as pl\n\n"
        "def double(x_ref, o_ref):\n"
        "    o_ref[...] = x_ref[...] * 2\n\n"
        "def test_one(pallas_check):\n"
        "    x = np.ones((8, 128), np.float32)\n"
        "    call = pl.pallas_call(double, jax.ShapeDtypeStruct(x.shape, x.dtype))\n"
        "    pallas_check(call, x, reference=lambda x: x * 2)\n"
    )
    (folder / "conftest.py").write_text(
        "import sys, json, pytest\n\n"
        "@pytest.hookimpl(trylast=True)\n"
        "def pytest_unconfigure():\n"
        "    loaders = {name: type(module.__loader__).__name__\n"
        "               for name, module in sys.modules.items() \n"
        "               if name.startswith(('pallas_sim', 'pytest_pallas'))}\n"
        "    with open('loaders.json', 'w') as file:\n"
        "        json.dump(loaders, file)\n"
    )
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        check=True,
    )
    return json.loads((folder / "loaders.json").read_text())


def test_pytest_compiles_no_module_of_the_package_anew(modules_of_a_small_run):
    rewritten = {n for n, loader in modules_of_a_small_run.items() if "Rewrit" in loader}
    assert "pallas_sim.simulation" in modules_of_a_small_run
    assert rewritten == {"pytest_pallas", "pytest_pallas._version"}


#: What one ``pallas_check`` for a TPU does not use.
UNUSED = (
    "pallas_sim.gpu.portable_",
    "pallas_sim.gpu.threads",
    "pallas_sim.rules.mosaic_",
    "pallas_sim.rules.triton",
)


def test_a_small_run_imports_what_it_uses(modules_of_a_small_run):
    imported = [name for name in modules_of_a_small_run if name.startswith(UNUSED)]
    assert imported == []
