"""docs/recipes.md: each recipe passes, and fails as it shows with its mistake."""

import re
from pathlib import Path

import pytest
from pallas_test_support.forked_python import run_python

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/recipes.md").read_text()
NAMES = re.findall(r"^# (\w+)\.py$", TEXT, re.MULTILINE)


def run(folder, modules, *options):
    """What the suite of these modules prints, with paths as on the page."""
    for name, code in modules.items():
        (folder / f"{name}.py").write_text(code)
    suite = f"--pallas-suite={','.join(modules)}"
    words = ("-m", "pytest", "-p", "no:cacheprovider", suite, *options)
    done = run_python(*words, cwd=folder)
    return done.stdout.replace(f"{folder.resolve()}/", "")


@pytest.fixture(scope="module")
def recipes():
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(ROOT / "scripts"))
        from readme_output import recipes

        yield recipes()


@pytest.fixture(scope="module")
def printed(recipes, tmp_path_factory):
    wrong = {name: wrong for name, (_, wrong) in recipes.items()}
    return run(tmp_path_factory.mktemp("wrong"), wrong)


def test_each_kind_has_a_recipe_and_a_row(recipes):
    titles = re.findall(r"^## (.+)$", TEXT, re.MULTILINE)
    rows = re.findall(r"^\| \[(.+?)\]\(#", TEXT, re.MULTILINE)
    assert [row.lower() for row in rows] == [title.lower() for title in titles]
    assert list(recipes) == NAMES
    assert len(titles) == len(NAMES) == 8


def test_all_recipes_pass(recipes, tmp_path):
    right = {name: right for name, (right, _) in recipes.items()}
    text = run(tmp_path, right, "--pallas-profile=quick")
    assert re.search(r"^=+ \d+ passed, \d+ not applicable in", text, re.MULTILINE), text


@pytest.mark.parametrize("name", NAMES)
def test_the_mistake_fails_as_shown(printed, name):
    shown = re.search(rf"<!-- output: {name} -->\n```text\n(.*?)```", TEXT, re.DOTALL)[1]
    assert len(shown.splitlines()) > 1
    for line in shown.splitlines():
        assert line in printed, line


def test_what_does_not_show_the_mistake(printed):
    """The answer of a sum over a parallel dimension."""
    failed = [line for line in printed.splitlines() if line.startswith("FAILED")]
    assert not any("matmul-forward[tpu-sim]" in line for line in failed)
    assert any("all_gather-forward[tpu-sim-x]" in line for line in failed)
