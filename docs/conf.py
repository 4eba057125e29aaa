"""How Sphinx builds these pages: `.ci/docs` writes build/docs, with warnings as errors and nothing from another site."""

import tomllib
from pathlib import Path

project = "Meshwright"
author = "Meshwright's maintainers"
with (Path(__file__).parents[1] / "pyproject.toml").open("rb") as file:
    release = tomllib.load(file)["project"]["version"]

extensions = ["myst_parser"]
exclude_patterns = ["conf.py"]
# Headings down to the fourth can be linked to, by the name that GitHub gives them.
myst_heading_anchors = 4
nitpicky = True

html_theme = "furo"
html_title = f"Meshwright {release}"
html_static_path = ["pictures"]
html_show_copyright = False
