"""The page of docs/howto/page.md: digits that are drawn and corrected in the browser, written at each build."""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
from pathlib import Path

from ortpipe import run
from ortpipe.app.commands import export
from ortpipe.errors import TrainError

WEB = Path(__file__).resolve().parents[1] / "web" / "node_modules" / "onnxruntime-web"
FRAME = """## Try it here

```{raw} html
<iframe src="../demo/digits/index.html" title="Digits: draw, correct, train" loading="lazy"
  style="width: 100%; height: 62rem; border: 0"></iframe>
```
"""


def write(folder: Path, snippet: Path) -> None:
    """Write the page to `demo/digits` in a folder, and the text that shows it; without onnxruntime-web, no text."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    runtime = ["--runtime", str(WEB)] if WEB.is_dir() else []
    silence = contextlib.ExitStack()
    with tempfile.TemporaryDirectory() as temporary, silence:
        for redirect in (contextlib.redirect_stdout, contextlib.redirect_stderr):
            silence.enter_context(redirect(io.StringIO()))
        settings = ["penalty=none", "train.epochs=20", "recorder=none", "figures=false", f"paths.outputs={temporary}"]
        run(*settings, f"hydra.run.dir={temporary}/digits")
        try:
            export.run([f"{temporary}/digits", "--output", str(folder / "demo" / "digits"), "--page", *runtime])
        except TrainError:  # neither npm nor its packages
            snippet.write_text("\n", encoding="utf-8")
        else:
            snippet.write_text(FRAME, encoding="utf-8")
