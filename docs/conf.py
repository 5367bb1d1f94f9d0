"""How `make docs` makes a site of docs/ and notebooks/: pages are Markdown, notebooks are run and shown with what they print."""

project = "gnnkit"
author = "the gnnkit authors"
extensions = ["myst_nb"]
html_theme = "furo"
html_title = "gnnkit"

# The source is the whole repository, so that links between docs/, notebooks/ and examples/ are those that work on a code host.
root_doc = "docs/index"
include_patterns = ["docs/*.md", "notebooks/*.ipynb"]
exclude_patterns = [".*", "build", "dist", "data", "gnnkit", "tests", "tools", "lightning_logs"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
# Of widgets the text beside them is shown; lines such as %load_ext are no Python.
suppress_warnings = ["mystnb.unknown_mime_type", "misc.highlighting_failure"]

# A notebook is run again once its file has changed (rm -r build/docs-cache: all of them); each ends with its own assertions.
nb_execution_mode = "cache"
nb_execution_cache_path = "build/docs-cache"
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
