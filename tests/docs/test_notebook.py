"""examples/notebook: it runs, and shows the pictures that it talks about."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples/notebook/find_a_bug.ipynb"


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What each cell showed, as HTML, by the beginning of its last line."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    folder = tmp_path_factory.mktemp("notebook")
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=120, resources=resources).execute()
    return {
        cell.source.splitlines()[-1]: output.data["text/html"]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    }


def test_each_finding_has_its_picture(shown):
    assert {line: _pictures(html) for line, html in shown.items()} == {
        "found(softmax, x[:20], reference=jax.nn.softmax)": ["heat", "histogram"],
        "pytest_pallas.analyze(softmax, x[:20])": ["grid"],
        "found(softmax, 100 * x, reference=jax.nn.softmax)": ["heat", "histogram"],
        "simulate(doubled, x)": ["race", "race"],
    }


def test_it_shows_what_it_talks_about(shown):
    tail, grid, overflow, race = shown.values()
    assert "no program of body (grid (2,)) writes its block" in tail
    assert "no program writes [16:20, 0:128] of the output" in grid
    assert "NaN where the oracle is finite" in overflow
    assert "race on buffer: nothing orders two accesses" in race
    assert "equations evaluated" in race


def _pictures(html):
    return [part.partition('"')[0] for part in html.split('<figure class="picture-')[1:]]
