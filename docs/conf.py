"""Settings of Sphinx for the site: `make docs`. The reference is the docstrings as they stand in the code."""

import html
import inspect
import re
from typing import Any

import click
import jinja2
from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

import digrad
from digrad.cli.main import digrad as command_line

project = "digrad"
author = "The digrad developers"
copyright = f"{author}, Apache-2.0"
version = release = digrad.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design"]
exclude_patterns = ["_build", "results/certificates"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
myst_fence_as_directive = ["math"]  # the form that other viewers of Markdown know
nb_execution_mode = "off"  # a test executes the notebook; the site shows what is stored

autodoc_typehints = (
    "none"  # the signature in the code is for tools; what an argument may be is in its description
)
autodoc_preserve_defaults = False  # it reads sources, where the options of a run are not listed
napoleon_numpy_docstring = False
nitpicky = True  # a role that leads nowhere is a warning, and a warning ends the build
nitpick_ignore_regex = [
    ("py:class", r"(collections|jax|matplotlib|networkx|numpy|pandas|pathlib|scipy|torch)\..*"),
    (
        "py:class",
        r"digrad\.\w+\.\w+\..*",
    ),  # annotations name the true place of a class, which need not be public
]

html_math_renderer = "mathml"  # which browsers draw by themselves: the site asks the network for nothing
html_theme = "pydata_sphinx_theme"
html_title = "digrad"
html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_sidebars = {"**": ["globaltoc.html"]}  # the pages are no sections of a section: all of them, everywhere
html_theme_options = {
    "show_toc_level": 2,
    "header_links_before_dropdown": 4,
    "footer_start": ["copyright"],
    "footer_end": [],
}

FACTS = re.compile("(Communication|Converges|Invariant|Also known as|Deviations|Reference):( |$)")
SIZES = re.compile(r"\\[bB]igg?[lr]?(?![a-zA-Z])")  # of brackets, which browsers choose
LONGEST_SIGNATURE = 600  # characters


def names_of_the_root() -> dict[str, list[tuple[str, str]]]:
    """Return the public names of digrad as (directive, name), the methods and the others."""
    methods = [("autoclass", name) for name in digrad.METHODS]
    others = [(_directive(getattr(digrad, name)), name) for name in digrad.__all__]
    return {
        "methods": methods,
        "others": [(kind, name) for kind, name in others if kind and ("autoclass", name) not in methods],
    }


def _directive(value: Any) -> str:
    return "autoclass" if inspect.isclass(value) else "autofunction" if inspect.isfunction(value) else ""


def fill_in_names(_app: Any, page: str, source: list[str]) -> None:
    """Expand the loops over public names and commands in the reference."""
    if page.startswith("reference/"):
        source[0] = jinja2.Template(source[0]).render(names_of_the_root() | {"commands": help_of_commands()})


def help_of_commands() -> dict[str, str]:
    """Return what ``--help`` prints, by command."""
    group = click.Context(command_line, info_name="digrad", max_content_width=100)
    contexts = [
        click.Context(command, info_name=name, parent=group, max_content_width=100)
        for name, command in sorted(command_line.commands.items())
    ]
    return {context.command_path: context.get_help() for context in (group, *contexts)}


def skip_names_of_the_root(
    app: Any, what: str, name: str, value: Any, _skip: bool, _options: Any
) -> bool | None:
    """Leave a name that is public in digrad itself out of the page of its module: it has an entry already."""
    return True if what == "module" and name in digrad.__all__ and getattr(digrad, name) is value else None


def facts_as_fields(_app: Any, _what: str, _name: str, _value: Any, _options: Any, lines: list[str]) -> None:
    """Turn the paragraphs in which a method states facts about itself into a list of fields."""
    facts = [place for place, line in enumerate(lines) if FACTS.match(line)]
    for place in facts:
        lines[place] = FACTS.sub(r":\1:\2", lines[place], count=1)
    if facts:
        lines.insert(facts[0], "")


def properties_as_written(
    _app: Any, what: str, _name: str, value: Any, _options: Any, lines: list[str]
) -> None:
    """Undo what napoleon reads into a property: a colon in its only line separates no type from a description."""
    if what == "property":
        lines[:] = [*(inspect.getdoc(value) or "").splitlines(), ""]


def without_texts(_app: Any, _what: str, _name: str, _v: Any, _o: Any, signature: str, returned: str) -> Any:
    """Leave out a signature whose defaults are whole sentences: such a value is read by users, not made."""
    return ("", returned) if signature and len(signature) > LONGEST_SIGNATURE else None


def find_by_last_name(app: Any, env: Any, node: Any, contnode: nodes.Node) -> nodes.Node | None:
    """Resolve a role such as :func:`sinkhorn` to the only public name that ends so."""
    if node.get("refdomain") != "py":
        return None
    last = node["reftarget"].rsplit(".", 1)[-1]
    found = [name for name in env.domains["py"].objects if name.rsplit(".", 1)[-1] == last]
    if len({env.domains["py"].objects[name].node_id for name in found}) != 1:
        return None
    python = env.domains["py"]
    return python.resolve_xref(env, node["refdoc"], app.builder, "obj", found[0], node, contnode)


def show_inline(translator: Any, node: nodes.math) -> None:
    """Write a formula inside a sentence."""
    translator.body.append(_mathml(node, node.astext()))
    raise nodes.SkipNode


def show_block(translator: Any, node: nodes.math_block) -> None:
    """Write a formula of its own; several lines are aligned."""
    text = node.astext()
    if r"\\" in text and r"\begin" not in text:
        text = rf"\begin{{aligned}}{text}\end{{aligned}}"
    translator.body.append(f'<div class="math">{_mathml(node, text)}</div>')
    raise nodes.SkipNode


def _mathml(node: nodes.Node, text: str) -> str:
    try:
        return tex2mathml(SIZES.sub("", text), as_block=isinstance(node, nodes.math_block))
    except MathError as error:
        logging.getLogger(__name__).warning("%s in the formula %s", error, text, location=node)
        return html.escape(text)


def setup(app: Any) -> None:
    """Register the hooks."""
    app.connect("source-read", fill_in_names)
    app.connect("autodoc-skip-member", skip_names_of_the_root)
    app.connect("autodoc-process-docstring", facts_as_fields, priority=400)  # napoleon comes at 500
    app.connect("autodoc-process-docstring", properties_as_written, priority=600)
    app.connect("autodoc-process-signature", without_texts)
    app.connect("missing-reference", find_by_last_name)
    app.add_html_math_renderer("mathml", (show_inline, None), (show_block, None))
