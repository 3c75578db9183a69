"""The build of the pages: sphinx-build -W docs outputs/site."""

import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.append(str(HERE))

import demo  # noqa: E402
import generate  # noqa: E402

generate.write(HERE / "reference" / "generated")
DEMO = HERE.parent / "outputs" / "demo"
demo.write(DEMO, HERE / "reference" / "generated" / "demo.txt")

project = "ortpipe"
release = importlib.metadata.version("ortpipe")
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 5
nb_execution_mode = "force"  # notebooks are kept without outputs
nb_execution_excludepatterns = [] if importlib.util.find_spec("torch") else ["learn/pytorch_*"]
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
html_theme = "furo"
html_title = "ortpipe"
html_show_sphinx = False
html_show_copyright = False
html_static_path = ["static"]
html_extra_path = [str(DEMO)]
html_css_files = ["wrap.css"]


def setup(app: Any) -> None:
    """Write llms.txt and llms-full.txt beside the pages."""
    app.connect("build-finished", lambda app, error: error or generate.write_llms(Path(app.outdir)))
