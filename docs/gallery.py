"""Draw the pictures of docs/gallery.md again: `python docs/gallery.py` runs its commands and writes static/gallery/.

It needs Chromium for the screenshots of report.html and of MLflow's page.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
PAGE, PICTURES = HERE / "gallery.md", HERE / "static" / "gallery"
# The picture's name → its file in the folder where the page's commands ran.
DRAWN = {
    "losses.png": "digits/figures/losses.png",
    "confusion.png": "digits/figures/confusion.png",
    "curves.png": "digits/figures/curves.png",
    "sensitivity.png": "images/figures/sensitivity.png",
    "predicted.png": "columns/figures/predicted.png",
    "residuals.png": "columns/figures/residuals.png",
    "importance.png": "columns/figures/importance.png",
    "sweep.png": "variants/summary.png",
    "graph.svg": "gradient.svg",
}
LARGEST = 100_000  # bytes of a picture
PORT = 5918
RUNS = f"http://127.0.0.1:{PORT}/#/experiments/1/runs"


def commands() -> list[str]:
    """Return the commands of the page, in order."""
    return "\n".join(re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)).splitlines()


def main() -> None:
    """Run the commands and write the pictures."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()).resolve()
    for command in commands():
        if not command.startswith("mlflow ui"):
            print(command, flush=True)
            subprocess.run(command, shell=True, cwd=folder, check=True)
    for name, source in DRAWN.items():
        if name.endswith(".svg"):
            shutil.copy(folder / source, PICTURES / name)
        else:
            _save(Image.open(folder / source), PICTURES / name)
    report = (folder / "digits" / "report.html").as_uri()
    for scheme in ("light", "dark"):
        picture = _screenshot(report, 940, 945, dark=scheme == "dark")
        _save(picture, PICTURES / f"report-{scheme}.png")
        _save(picture.crop((0, 320, 940, 945)), PICTURES / f"results-{scheme}.png")  # for the README
    with _mlflow(folder):
        _save(_screenshot(RUNS, 1280, 600).crop((0, 0, 945, 600)), PICTURES / "mlflow.png")


def _save(picture: Image.Image, path: Path) -> None:
    """Write a picture of at most 256 colours, chosen by an octree, which keeps thin lines; shrink it to LARGEST."""
    width = min(picture.width, 1280)
    while True:
        size = (width, round(picture.height * width / picture.width))
        small = picture.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        file = io.BytesIO()
        small.quantize(256, Image.Quantize.FASTOCTREE).save(file, "PNG", optimize=True)
        if file.tell() <= LARGEST:
            path.write_bytes(file.getvalue())
            return
        width = width * 9 // 10


def _screenshot(address: str, width: int, height: int, dark: bool = False) -> Image.Image:
    with tempfile.NamedTemporaryFile(suffix=".png") as file:
        scheme = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=60000", *scheme]
        size = f"--window-size={width},{height}"
        command = ["chromium", *options, size, f"--screenshot={file.name}", address]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        picture = Image.open(file.name)
        picture.load()
    return picture


@contextlib.contextmanager
def _mlflow(folder: Path) -> Iterator[None]:
    command = next(command for command in commands() if command.startswith("mlflow ui"))
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    server = subprocess.Popen([*command.split(), "--port", str(PORT), "--workers", "1"], cwd=folder, env=environment)
    try:
        while server.poll() is None and not _is_up():
            time.sleep(0.5)
        yield
    finally:
        server.terminate()
        server.wait()


def _is_up() -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{PORT}/", timeout=5):
        return True
    return False


if __name__ == "__main__":
    main()
