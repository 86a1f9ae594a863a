"""Sphinx configuration."""

from __future__ import annotations

import sys
from importlib.metadata import version as _version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "kartothek_cube"
author = "kartothek_cube contributors"
copyright = "2026, kartothek_cube contributors"
release = _version("kartothek_cube")
version = release

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",  # leaves <BLANKLINE> and flags out of the pages
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "terminal",  # docs/_ext: runs the command line and shows what it prints
]
exclude_patterns = ["_build"]
html_static_path = ["_static"]
html_theme = "furo"
html_title = f"kartothek_cube {release}"

# a copied example is a script: without prompts and output
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

autodoc_default_options = {"members": True, "show-inheritance": True, "member-order": "bysource"}
autodoc_typehints = "signature"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
