"""Bundles in plain onnxruntime in Python, in Node and in a browser: losses of 100 steps side by side, and µs per step.

    python -m benchmarks.bundle --python /path/to/python/with/stock/onnxruntime
    python -m benchmarks.bundle --quick   # shows that it runs

Needs `npm install --ignore-scripts` in web/; Chromium is left out where it is missing. Every runtime has one thread and
the same rows, in the same order. A time is that of a step in the fastest of 200 epochs of 25 steps, with drawing and
gathering its rows; on a busy machine, other times say little.
"""

import argparse
import json
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from sklearn.datasets import load_digits

from ortpipe import (
    LOSSES,
    OPTIMIZERS,
    AddLossConfig,
    ConvertConfig,
    Data,
    DeriveConfig,
    Lora,
    Rows,
    TrainConfig,
    add_loss,
    convert,
    derive,
)
from ortpipe.bundle import write_bundle
from ortpipe.data.raw_columns import RawColumn
from ortpipe.stages.convert.sources import SOURCES

ROOT = Path(__file__).resolve().parents[1]
COUNT, BATCH, EPOCHS = 800, 32, 4  # 100 steps
RATES = {"sgd": 0.05, "momentum": 0.02, "adam": 0.003}
PAGE = """<!doctype html><script type="module">
import {{ measure }} from "/benchmarks/bundle.js";
const read = async (name) => (await fetch(`/bundles/${{name}}.json`)).json();
const options = {{ runtime: "/web/node_modules/onnxruntime-web/dist/ort.wasm.bundle.min.mjs" }};
const answer = await measure("/bundles", read, {names}, {epochs}, {more}, options)
  .then((results) => ({{ version: navigator.userAgent.match(/Chrome.[0-9]+/)[0], results }}))
  .catch((error) => ({{ error: error.stack }}));
await fetch("/done", {{ method: "POST", body: JSON.stringify(answer) }});
</script>"""


def table() -> Rows:
    """Return rows with words, numbers and gaps."""
    rng = np.random.default_rng(0)
    city, kind = np.array(["Oslo", "Lima", "Rome", ""])[rng.integers(0, 4, COUNT)], rng.choice([*"abcdef"], COUNT)
    age = np.where(rng.random(COUNT) < 0.1, np.nan, rng.normal(40, 9, COUNT)).astype(np.float32)
    income = rng.normal(50, 10, COUNT).astype(np.float32)
    buys = (city == "Oslo") * 3 + income / 10 + (kind == "a") + rng.normal(0, 1, COUNT) > 6
    kept = {"city": RawColumn("word"), "kind": RawColumn("word"), "age": RawColumn("number")}
    inputs = {"city": city, "kind": kind, "age": age, "income": income}
    return Rows(inputs, np.where(buys, "buy", "leave"), kept={**kept, "income": RawColumn("number")})


def write(folder: Path) -> list[str]:
    """Write a bundle and its rows for each model and optimizer; return their names."""
    x, y = load_digits(return_X_y=True)
    digits = Rows({"X": (x[:COUNT] / 16).astype(np.float32)}, y[:COUNT])
    mlp = SOURCES["mlp"](hidden=(100,), dropout=0.0)
    models = {
        "digits MLP 64→100→10": (mlp, digits, "cross_entropy", DeriveConfig()),
        "table, TabM": (SOURCES["tabular"](members=4, width=32, blocks=2, dropout=0.0), table(), "log", DeriveConfig()),
        "digits CNN 8-16": (SOURCES["cnn"](image=(1, 8, 8), channels=(8, 16)), digits, "cross_entropy", DeriveConfig()),
        "digits MLP, LoRA rank 4": (mlp, digits, "cross_entropy", DeriveConfig(adapters=Lora(rank=4))),
    }
    names = []
    for model, (source, rows, loss, config) in models.items():
        artifact = add_loss(convert(None, ConvertConfig(source), data=Data(rows)), AddLossConfig(LOSSES[loss]()))
        gradient = derive(artifact, config)
        for optimizer, rate in RATES.items():
            names.append(name := f"{model} {optimizer}".replace(" ", "_").replace(",", ""))
            write_bundle(gradient, TrainConfig(OPTIMIZERS[optimizer](lr=rate), batch_size=BATCH), folder / name)
            [prediction] = json.loads((folder / name / "bundle.json").read_text())["predictions"]
            given = {
                "rows": {key: array.tolist() for key, array in rows.inputs.items()},
                "labels": rows.label.tolist(),
                **{key: prediction[key] for key in ("label", "classes")},
            }
            (folder / f"{name}.json").write_text(json.dumps(given).replace("NaN", "null"))
    return names


class Handler(SimpleHTTPRequestHandler):
    """Serves the page, the checkout and the bundles, and takes the page's answer."""

    page, bundles, answers = "", Path(), queue.Queue[str]()

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def translate_path(self, path: str) -> str:
        """Return the file of a path."""
        if path.startswith("/bundles/"):
            return str(self.bundles / unquote(path).removeprefix("/bundles/"))
        return super().translate_path(path)

    def guess_type(self, path: str) -> str:
        """Return the type of a file; Python does not know .mjs everywhere."""
        return "text/javascript" if str(path).endswith(".mjs") else super().guess_type(path)

    def do_GET(self) -> None:
        """Send the page, or a file."""
        if self.path != "/":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(self.page.encode())

    def do_POST(self) -> None:
        """Take the page's answer."""
        self.answers.put(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(204)
        self.end_headers()


def in_chromium(folder: Path, names: list[str], epochs: int, more: int) -> dict[str, Any]:
    """Return the results of Chromium, in a worker."""
    Handler.page, Handler.bundles = PAGE.format(names=json.dumps(names), epochs=epochs, more=more), folder
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(ROOT)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as profile:
        command = [str(shutil.which("chromium")), "--headless", "--no-sandbox", f"--user-data-dir={profile}"]
        browser = subprocess.Popen([*command, f"http://127.0.0.1:{server.server_port}/"], stderr=subprocess.DEVNULL)
        try:
            answer = json.loads(Handler.answers.get(timeout=600))
        finally:
            browser.terminate()
            browser.wait()
            server.shutdown()
    if "error" in answer:
        raise SystemExit(answer["error"])
    return answer


def printed(command: list[str]) -> dict[str, Any]:
    """Return the JSON that a program prints."""
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Write the bundles, train them everywhere and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with onnxruntime and NumPy")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names = write(folder)
        names, more = (names[:4], 2) if options.quick else (names, 200)
        work = [str(EPOCHS), str(more)]
        node = ["node", str(ROOT / "benchmarks" / "bundle.js"), name, *work]
        stock = [options.python, str(ROOT / "benchmarks" / "bundle_stock.py"), name, *work]
        results = {"Python": printed(stock)}
        for runtime in ("onnxruntime-node", "onnxruntime-web"):
            results[f"Node, {runtime}"] = printed([*node, runtime, ",".join(names)])
        if shutil.which("chromium"):
            results["Chromium, onnxruntime-web"] = in_chromium(folder, names, EPOCHS, more)
        print(report(names, results, folder))


def report(names: list[str], results: dict[str, dict[str, Any]], folder: Path) -> str:
    """Return the table: bytes, the largest difference of a loss from Python's, µs per step; and the package's size."""
    lines = ["; ".join(f"{runtime}: {found['version']}" for runtime, found in results.items()), ""]
    lines += [f"| bundle | bytes | largest difference | {' | '.join(f'{runtime}, µs' for runtime in results)} |"]
    lines += ["|---|---:|---:|" + "---:|" * len(results)]
    for name in names:
        size = sum(path.stat().st_size for path in (folder / name).iterdir())
        found = [found["results"][name] for found in results.values()]
        expected, *others = (np.array(one["losses"]) for one in found)
        largest = max(np.abs(losses - expected).max() for losses in others)
        times = " | ".join(f"{one['us']:.0f}" for one in found)
        lines.append(f"| {name.replace('_', ' ')} | {size:,} | {largest:.0e} | {times} |")
    source = sum(path.stat().st_size for path in (ROOT / "web" / "src").glob("*.js"))
    return "\n".join([*lines, "", f"modules of web/src: {source:,} bytes"])


if __name__ == "__main__":
    main()
