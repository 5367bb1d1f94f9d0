"""The site of the documentation: Markdown, notebooks that have run, and docstrings.

tools/build_docs.py makes it.
"""

from importlib import metadata

project = "gnnkit"
author = "the gnnkit authors"
release = metadata.version("gnnkit")
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"gnnkit {release}"  # beside every page
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["gnnkit.css"]
html_js_files = ["copy.js"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"
nb_merge_streams = True
# Of widgets the text beside them is shown; lines such as %load_ext are no Python.
suppress_warnings = ["mystnb.unknown_mime_type", "misc.highlighting_failure"]

# One page for a package and its modules: names as users import them, signatures in
# lines, the order of the source.
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_class_signature = "mixed"
maximum_signature_line_length = 100
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
