"""The site of `make docs`: the pages in this folder, README.md as its start, and pages made from the code."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import made_pages

project = "heldin"
author = "The heldin authors"
copyright = author
release = version_of("heldin")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathml"]
html_math_renderer = "mathml"
exclude_patterns = ["_build", "notebooks"]
html_theme = "furo"
html_title = f"heldin {release}"
html_static_path = ["assets"]
html_css_files = ["site.css"]
html_copy_source = False
highlight_language = "none"  # a block of code without a language is text

myst_enable_extensions = ["dollarmath", "html_image"]
myst_heading_anchors = 4  # as tests/docs reads them
smartquotes = False  # `--option` is not a dash
suppress_warnings = ["ref.python"]  # two packages have a Record, and a signature names one of them

autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # a callable that is a default would else be described twice


def setup(app):  # noqa: ANN001, ANN201, D103
    made_pages.connect(app)
