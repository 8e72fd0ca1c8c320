"""The site builds without a warning, shows every public name, and no link inside it is dead."""

import hashlib
import importlib
import inspect
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import digrad
from browser import chromium
from docs_pages import DOCS, ROOT, pages

pytestmark = pytest.mark.long

MODULES = [name for name in digrad.__all__ if inspect.ismodule(getattr(digrad, name))]
MODULES += ["torch", "report", "specs", "paper", "testing"]


BUILT = DOCS / "_build" / "tested"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, built as `make docs` does, unless the last one was built of the same."""
    pytest.importorskip("torch", reason="the reference of digrad.torch needs torch")
    made_of, now = BUILT / "made_of", sources()
    if not made_of.is_file() or made_of.read_text() != now:
        shutil.rmtree(BUILT, ignore_errors=True)
        shutil.copytree(build(tmp_path_factory.mktemp("site")), BUILT / "html")
        made_of.write_text(now)
    return BUILT / "html"


def sources():
    """Return a hash of everything that the site is made of."""
    files = [ROOT / "Makefile", *ROOT.glob("*.md")]
    for folder in ("src", "docs", "examples"):
        files += [
            path for path in (ROOT / folder).rglob("*") if not {"_build", "__pycache__"} & set(path.parts)
        ]
    found = hashlib.sha256(sys.version.encode())
    for package in sorted(f"{one.name} {one.version}" for one in distributions()):
        found.update(package.encode())
    for path in sorted(path for path in files if path.is_file()):
        found.update(f"{path.relative_to(ROOT)} {path.stat().st_size} ".encode() + path.read_bytes())
    return found.hexdigest()


def build(folder):
    """Build the site as the Makefile says, and return its folder."""
    (options,) = re.findall(r"-m sphinx (.*) docs docs/_build/html", (ROOT / "Makefile").read_text())
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options.split(), "-d", folder / "doctrees", DOCS, folder / "html"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def entries(site):
    """The names that the reference describes."""
    text = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    return set(re.findall(r'id="(digrad\.[\w.]+)"', text))


def test_every_public_name_has_an_entry(entries):
    wanted = {f"digrad.{name}" for name in digrad.__all__ if name not in MODULES}
    for module in MODULES:
        # digrad.compressors is a module of digrad.links, digrad.torch no attribute of digrad
        place = getattr(digrad, module, None) or importlib.import_module(f"digrad.{module}")
        for name in getattr(place, "__all__", ()):
            value = getattr(place, name)
            is_described = inspect.isclass(value) or inspect.isfunction(value)
            if is_described and not (name in digrad.__all__ and getattr(digrad, name) is value):
                wanted.add(f"{place.__name__}.{name}")
    assert len(wanted) > 100
    assert wanted <= entries, sorted(wanted - entries)


def test_every_name_that_a_page_imports_has_an_entry(entries):
    prose = [(DOCS / page).read_text() for page in pages()] + [(ROOT / "CONTRIBUTING.md").read_text()]
    imported = re.findall(r"^from (digrad\.[\w.]+) import ([\w, ]+)$", "\n".join(prose), re.MULTILINE)
    wanted = {(module, name) for module, names in imported for name in names.split(", ")}
    assert ("digrad.types", "StepSize") in wanted
    absent = [f"{module}.{name}" for module, name in wanted if f"digrad.{name}" not in entries]
    # A module has no entry of its own: what it holds has.
    modules = {entry.rpartition(".")[0] for entry in entries}
    assert set(absent) <= entries | modules, sorted(set(absent) - entries)


class Links(HTMLParser):
    """Links of a page, and the places on it that can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.targets |= {value for name, value in attrs if name in ("href", "src") and value}
        self.places |= {value for name, value in attrs if name in ("id", "name") and value}


def test_no_link_inside_the_site_is_dead(site):
    pages = {path: Links(path) for path in site.rglob("*.html") if "_static" not in path.parts}
    assert len(pages) > 25
    dead = []
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or (not parts.path and not parts.fragment):
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            is_place = file not in pages or not parts.fragment or parts.fragment in pages[file].places
            if not file.exists() or not is_place:
                dead.append(f"{path.relative_to(site)}: {target}")
    assert not dead


FORMULA = """const home = document.querySelector("div.math"), formula = home.querySelector("mtable");
const [outside, inside] = [home, formula].map((node) => node.getBoundingClientRect());
return [inside.left - outside.left, outside.right - inside.right, getComputedStyle(home).overflowX];"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as one:
        yield one


def test_formulas_stand_in_the_middle_and_those_too_wide_scroll(site, browser):
    browser.open(site / "reference" / "methods.html")
    left, right, overflow = browser.run(FORMULA)
    assert left == pytest.approx(right, abs=20)
    browser.open(site / "reference" / "methods.html", width=390)
    assert browser.run(FORMULA)[2] == overflow == "auto"


SHOWN = """return [document.querySelectorAll("h1").length,
[...document.images].filter((image) => image.naturalWidth === 0).map((image) => image.src),
document.documentElement.scrollWidth - innerWidth];"""


# One page of each kind: a front page, figures, tables, formulas, a notebook, docstrings.
KINDS = ("index", "examples", "guides/unreliable", "theory", "tour", "reference/methods")


@pytest.mark.parametrize("all_pages", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_pages_open_in_a_browser_with_their_pictures(all_pages, site, browser):
    every = [path for path in site.rglob("*.html") if "_static" not in path.parts]
    for path in every if all_pages else [site / f"{name}.html" for name in KINDS]:
        browser.open(path)  # the theme says on the first page that no mode was chosen before
        titles, without_picture, beyond_the_edge = browser.run(SHOWN)
        assert (titles, without_picture) == (1, []), path
        assert beyond_the_edge <= 0, path
        severe = [entry["message"] for entry in browser.log("browser") if entry["level"] == "SEVERE"]
        assert [message for message in severe if "theme mode" not in message] == [], path
        assert {urlsplit(address).scheme for address in browser.requests()} <= {"file", "data"}, path


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_of_the_front_pages_lead_to_files(name):
    links = re.findall(r"\]\(([^)#]+)", (ROOT / name).read_text())
    assert not [link for link in links if "://" not in link and not (ROOT / link).exists()]
