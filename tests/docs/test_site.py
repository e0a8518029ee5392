"""What the site is made of: navigation, the options that pages name, and the project's files."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import pytest_pallas
from pytest_pallas.options import DOCTOR, TABLE
from pytest_pallas.tested import TESTED, VersionRange

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md"))
ROOT_PAGES = sorted(path.name for path in ROOT.glob("*.md"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SUPPORT = (DOCS / "support.md").read_text()
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[0-9]*.yml"))


def listed(page):
    """The pages in the tables of contents of a page."""
    trees = re.findall(r"```\{toctree\}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    lines = [line for tree in trees for line in tree.splitlines() if line and line[0] != ":"]
    return [re.sub(r".*<(.+)>", r"\1", line) for line in lines]


def test_every_page_is_in_the_navigation():
    named = [f"docs/{name}.md" for name in listed("index.md")]
    named += [f"docs/api/{name}.md" for name in listed("api/index.md")]
    kernels = [page for page in PAGES if page.startswith("docs/kernels/")]  # by docs/conf.py
    assert sorted({"docs/index.md", *named, *kernels}) == PAGES
    assert len(named) == len(set(named))


def test_pages_outside_of_docs_are_included_where_links_to_them_lead():
    sources = (DOCS / "conf.py").read_text()
    places = dict(re.findall(r'ROOT / "([\w/.]+\.md)": "([\w/]+)"', sources))
    assert {name for name in places if "/" not in name} == set(ROOT_PAGES)
    for name, page in places.items():
        text = (DOCS / f"{page}.md").read_text()
        path = re.search(r"\{include\} (\S+)", text)
        if name != "README.md":  # the first page of the site is another one
            assert (DOCS / f"{page}.md").parent.joinpath(path[1]).resolve() == ROOT / name


@pytest.mark.parametrize("page", [*PAGES, *ROOT_PAGES])
def test_options_that_are_named_exist(page):
    named = set(re.findall(r"(?<![\w-])--pallas-[a-z-]*[a-z]", (ROOT / page).read_text()))
    assert named <= {DOCTOR, *(option.flag for option in TABLE)}


@pytest.mark.parametrize("page", ROOT_PAGES)
def test_links_of_the_root_lead_somewhere(page):
    links = re.findall(r"\]\((?!\w+:)([^()#\s]+)", (ROOT / page).read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("words", ["vendor.github-issue-forms", "vendor.github-issue-config"])
def test_issue_templates_are_what_github_takes(words):
    config = ROOT / ".github/ISSUE_TEMPLATE/config.yml"
    check(words, *([config] if words.endswith("config") else FORMS))


def test_the_citation_is_what_readers_of_it_take():
    check("vendor.citation-file-format", ROOT / "CITATION.cff")


def check(schema, *files):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema]
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == pytest_pallas.__version__
    assert citation["license"] == PROJECT["project"]["license"]


def test_supported_versions_are_those_of_the_project_and_of_ci():
    ci = (ROOT / ".ci/run").read_text()
    pinned = dict(each.split("==") for each in PROJECT["tool"]["uv"]["constraint-dependencies"])
    rows = {
        row[0]: row[1:]
        for row in re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", SUPPORT, re.MULTILINE)
    }
    lowest = dict(
        re.findall(
            r"^([a-z]+)>=([\d.]+)$", "\n".join(PROJECT["project"]["dependencies"]), re.MULTILINE
        )
    )
    for title, name in (("JAX", "jax"), ("pytest", "pytest"), ("Hypothesis", "hypothesis")):
        least, most, tested = rows[title]
        assert least == lowest[name]
        assert re.match(rf"{re.escape(most)}(\.|$)", pinned[name])
        assert pinned[name] in tested
        assert TESTED[name] == VersionRange(least, most)
        assert re.search(rf'"{name}=={re.escape(least)}(\.\*)?"', ci)
    least, most, tested = rows["Python"]
    classifiers = [each.rpartition(" ")[2] for each in PROJECT["project"]["classifiers"]]
    assert {least, most} <= set(classifiers)
    assert TESTED["python"] == VersionRange(least, most)
    assert PROJECT["project"]["requires-python"] == f">={least}"
    assert (ROOT / ".python-version").read_text().strip() in tested
    assert pinned["libtpu"] in rows["libtpu, for `tpu-compile`"][2]


def test_the_changes_end_with_this_version_or_with_what_is_not_released():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert pytest_pallas.__version__ in headings[0]
