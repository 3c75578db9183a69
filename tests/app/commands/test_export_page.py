"""ortpipe export --page: a page that trains in Chromium, without a word to another host."""

import json
import re
import shutil
import wave
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from browser import Proxy, chromium, unnamed

from ortpipe import run
from ortpipe.app.commands import export
from ortpipe.bundle import runtime_files
from ortpipe.bundle.web_runtime import FILES
from ortpipe.errors import ConfigError, TrainError
from ortpipe.runtime.session import Session

WEB = Path(__file__).resolve().parents[3] / "web" / "node_modules" / "onnxruntime-web"
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "howto" / "page.md"
ONE = (((0.3, 0.35), (0.5, 0.15), (0.5, 0.85)), ((0.3, 0.85), (0.7, 0.85)))  # with a base line
RATE = 4000


@pytest.fixture(scope="module")
def runtime() -> str:
    if not WEB.is_dir():
        pytest.skip("needs onnxruntime-web: npm install in web/")
    return str(WEB)


@pytest.fixture(scope="module")
def bundles(runtime: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the pages of digits, by the commands of the docs, and of a shop, of prices and of tones."""
    folder = tmp_path_factory.mktemp("pages")
    _write_shop(folder)
    _write_tones(folder)
    (folder / "price.csv").write_text("area,price\n" + "\n".join(f"{area},{3.1 * area}" for area in range(20, 90)))
    shop = ["~experiment", "data=csv", "data.source.path=shop.csv", "data.source.label=bought", "convert=auto"]
    shop += ["add_loss=auto", "train.epochs=3", "train/optimizer=adam", "train.optimizer.lr=0.01"]
    price = [*shop, "data.source.path=price.csv", "data.source.label=price"]
    tones = ["~experiment", "data=audio", "data.source.path=sounds", "data.source.labels=sounds/labels.csv"]
    tones += [f"data.source.rate={RATE}", "data.source.samples=128", "data.source.outside=quiet"]
    tones += ["data.split={test: null, column: part}", "convert=mlp", "convert.source.hidden=[16]", "train.epochs=10"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train, write = (line.split()[1:] for line in re.findall("^ortpipe .*$", DOCUMENT.read_text(), re.M))
        run(*train, "figures=false")
        export.run([*write[1:], "--runtime", runtime])
        for name, arguments in (("shop", shop), ("price", price), ("tones", tones)):
            run(*arguments, "recorder=none", "figures=false", f"hydra.run.dir={name}")
            export.run([name, "--output", f"{name}_page", "--page", "--runtime", runtime])
        export.run(["digits", "--output", "digits_page/sgd", "train.optimizer={name: sgd, lr: 0.05}"])
    return folder


def _write_shop(folder: Path) -> None:
    random = np.random.default_rng(0)
    lines = ["age,city,seen,member,bought"]
    for row in range(160):
        city = ["Bern", "Rome", '"Oslo, north"', ""][random.integers(4)]
        age, member = random.integers(18, 80), ["yes", "no"][random.integers(2)]
        date = np.datetime64("2025-01-01") + random.integers(300)
        lines.append(f"{age if row % 9 else ''},{city},{date},{member},{'yes' if city == 'Rome' else 'no'}")
    (folder / "shop.csv").write_text("\n".join(lines))


def _write_tones(folder: Path) -> None:
    random, lines = np.random.default_rng(0), ["file,start,end,label,part"]
    (folder / "sounds").mkdir()
    for number in range(8):
        part = "validation" if number > 5 else "test" if number == 5 else "train"
        sound, (start, end) = random.normal(size=2 * RATE) * 0.02, sorted(random.uniform(0.2, 1.8, 2).round(2))
        times = np.arange(int(start * RATE), int(end * RATE))
        sound[times] += 0.4 * np.sin(2 * np.pi * 300 * times / RATE)
        with wave.open(str(folder / "sounds" / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes((32767 * sound.clip(-1, 1)).astype("<i2").tobytes())
        lines.append(f"{number}.wav,{start},{end},tone,{part}")
    (folder / "sounds" / "labels.csv").write_text("\n".join(lines))


@pytest.fixture(scope="module")
def browser() -> Iterator[Callable[..., Any]]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def opened(browser: Callable[..., Any], bundles: Path) -> Iterator[Callable[..., Any]]:
    """Return a function that opens a page by name; afterwards, no page has logged anything or asked another host."""
    pages: list[Any] = []

    def open_page(name: str, **options: Any) -> Any:
        pages.append(browser(bundles / f"{name}_page", **options))
        return pages[-1]

    yield open_page
    assert [line for page in pages for line in page.logged] == []
    assert Proxy.others == []


def draw(page: Any, strokes: Sequence[Sequence[tuple[float, float]]]) -> None:
    """Draw with the mouse; points are shares of the canvas."""
    box = page.get_by_label("Drawing area").bounding_box()
    for points in strokes:
        first, *others = ((box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points)
        page.mouse.move(*first)
        page.mouse.down()
        for place in others:
            page.mouse.move(*place, steps=5)
        page.mouse.up()


def holds(page: Any, selector: str, words: str) -> None:
    """Wait until an element has some words."""
    page.locator(selector).filter(has_text=words).wait_for()


def held_out(page: Any) -> list[float]:
    """Return the percentage of held-out rows that are right, now and before."""
    return [float(number) for number in re.findall(r"[\d.]+", page.locator("dd").last.text_content())]


def test_a_correction_sticks_after_a_reload_and_spoils_nothing_else(opened: Callable[..., Any], bundles: Path) -> None:
    page = opened("digits")
    assert page.locator("#verdict").text_content() == "–"  # nothing is drawn: nothing to teach
    assert page.locator("#teach").is_hidden()
    draw(page, ONE)
    holds(page, "#verdict", "2 (")
    page.get_by_role("button", name="That was 1").click()
    holds(page, "#status", "Trained for")
    holds(page, "#verdict", "1 (")
    page.reload()
    holds(page, "#status", "Your trained model is back.")
    holds(page, "#corrections", "✓ learned")
    draw(page, ONE)
    holds(page, "#verdict", "1 (")
    after, before = held_out(page)
    assert after > before - 2  # percent

    with page.expect_download() as download:
        page.get_by_role("button", name="Download model.onnx").click()
    model = Session(onnx.load(download.value.path()))
    rows = json.loads((bundles / "digits_page" / "rows.json").read_text())["check"]
    [label] = model.run({"X": np.array(rows["inputs"]["X"], np.float32)}, ["label"])
    assert 100 * np.mean(label == rows["labels"]) == pytest.approx(after, abs=0.06)
    drawn = page.evaluate("JSON.parse(Object.values(localStorage)[0]).inputs.X")
    assert model.run({"X": np.array(drawn, np.float32)}, ["label"])[0].tolist() == [1]

    page.get_by_role("button", name="Forget everything").click()
    holds(page, "#verdict", "2 (")
    assert page.locator("#corrections").text_content() == ""
    assert held_out(page) == [before, before]


def test_a_missing_file_of_the_folder_is_named(opened: Callable[..., Any]) -> None:
    page = opened("digits")
    page.route("**/*.wasm", lambda route: route.fulfill(status=404))
    page.reload()
    holds(page, "#problem", "onnxruntime/ort-wasm-simd-threaded.wasm")
    holds(page, "#problem", "serve all files of the folder")
    holds(page, "#status", "not loaded")
    holds(page, "#input-title", "Not loaded")
    assert "404" in page.logged.pop()  # by the browser


DROP = """async (text) => {
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File([text], "rows.csv"));
    document.querySelector(".drop").dispatchEvent(new DragEvent("drop", { dataTransfer, cancelable: true }));
}"""
FIT = """async (bundle) => {
    const { Trainer } = await import("/trainer/index.js");
    const runtime = `${location.origin}/onnxruntime/ort.wasm.bundle.min.mjs`;
    const { replay } = await (await fetch("rows.json")).json();
    const trainer = await Trainer.load(new URL(bundle, location).href, { runtime });
    await trainer.fit(replay.inputs.X.slice(0, 160), replay.labels.slice(0, 160), { epochs: 20 });
    return [...await trainer.weights()];
}"""


# Adam divides gradients by their size: the few that are almost 0 differ by what wasm and x86 round differently.
@pytest.mark.parametrize(("name", "most", "share"), [("sgd", 1e-5, 1), (".", 1e-3, 0.95)])
def test_weights_after_100_steps_are_those_of_python(
    opened: Callable[..., Any], bundles: Path, name: str, most: float, share: float
) -> None:
    weights = opened("digits").evaluate(FIT, f"{name}/")
    folder = bundles / "digits_page" / name
    bundle, raw = json.loads((folder / "bundle.json").read_text()), (folder / "state.bin").read_bytes()
    places = {tensor["name"]: tensor for tensor in bundle["state"]["tensors"]}
    arrays = {n: np.frombuffer(raw, t["dtype"], int(np.prod(t["shape"])), t["offset"]) for n, t in places.items()}
    replay = json.loads((bundles / "digits_page" / "rows.json").read_text())["replay"]
    x, y = np.array(replay["inputs"]["X"][:160], np.float32), np.array(replay["labels"][:160])[:, None]
    train = Session(onnx.load(folder / "train.onnx"))
    state = {name: arrays[name] for name in bundle["carried"]}
    for epoch in range(20):
        order = np.random.default_rng([bundle["seed"], epoch + 1]).permutation(160).reshape(5, 32)
        steps = np.arange(5 * epoch, 5 * epoch + 5)
        scalars = {name: arrays[f"scalars/{name}"] for name in bundle["scalars"]}
        numbers = {name: values[np.minimum(steps, len(values) - 1)] for name, values in scalars.items()}
        rows = dict(zip(bundle["rows"], (x[order], y[order]), strict=True))
        *values, _ = train.run({**state, **numbers, **rows})
        state = dict(zip(bundle["carried"], values, strict=True))
    differences = np.abs(weights - state["parameters"])
    assert differences.max() <= most
    assert np.mean(differences <= 1e-5) >= share
    assert np.abs(state["parameters"] - arrays["parameters"]).max() > 0.01


def test_a_drawing_is_made_with_keys_or_a_finger_on_a_narrow_screen(opened: Callable[..., Any], bundles: Path) -> None:
    page = opened("digits", viewport={"width": 380, "height": 800}, has_touch=True, is_mobile=True)
    page.get_by_label("Drawing area").focus()
    for key in (" ", *["ArrowDown"] * 12):  # the pen down, then below: a one
        page.keyboard.press(key)
    holds(page, "#verdict", "1 (")
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    assert unnamed(page) == []
    page.keyboard.press("Delete")
    holds(page, "#verdict", "–")
    page.get_by_label("Drawing area").tap()
    holds(page, "#verdict", "(")
    page.get_by_label("Open a picture").set_input_files(bundles / "shop.csv")
    holds(page, "#problem", "must be a picture")
    assert "(" in page.locator("#verdict").text_content()  # the drawing stays


def test_a_table_is_a_form_and_its_rows_are_pasted(opened: Callable[..., Any], bundles: Path) -> None:
    page = opened("shop")
    assert page.get_by_label("city").locator("option").all_text_contents() == ["(none)", "Bern", "Oslo, north", "Rome"]
    assert page.get_by_label("seen").get_attribute("type") == "date"
    assert unnamed(page) == []
    page.get_by_label("age").fill("33")
    holds(page, "#verdict", "%")

    lines = (bundles / "shop.csv").read_text().splitlines()
    rows = page.get_by_label("Rows as CSV")
    rows.fill("age,city,seen,member,bought\n1e39,Rome,2025-01-01,yes,yes")
    page.get_by_role("button", name="Train on these rows").click()
    holds(page, "#problem", "1e39 in row 1")  # and later trainings work
    page.evaluate(DROP, "\n".join(lines[:31]))
    page.wait_for_function("document.querySelector('#csv').value")
    page.get_by_role("button", name="Train on these rows").click()
    holds(page, "#status", "Trained for")
    learned, count = map(int, page.locator("dd").first.text_content().split(" of "))
    assert (count, learned > 25) == (30, True)
    assert page.locator("#contradiction").is_hidden()
    rows.fill("age,city,seen,member,bought\n33,Rome,2025-01-01,yes,yes\n33,Rome,2025-01-01,yes,no")
    page.get_by_role("button", name="Train on these rows").click()
    holds(page, "#contradiction", "The same row was taught as yes and as no")
    assert page.locator("#hint").is_hidden()  # no learning rate helps

    rows.fill("\n".join(lines[:31]))
    page.get_by_role("button", name="Predict these rows").click()
    page.locator("tbody tr").nth(19).wait_for()
    names = ["prediction", "probability", "age", "city", "seen", "member"]
    assert page.locator("th").all_text_contents() == names

    for text, words in {
        "age,city\n1,Bern": "no seen, no member",
        "age,city,seen,member\nold,Bern,2025-01-01,yes": "old in row 1",
        "age,city,seen,member\n0x10,Bern,2025-01-01,yes": "0x10 in row 1",
        "age,city,seen,member\n1,Bern,2025-02-30,yes": "2025-02-30 in row 1",
        "age,city,seen,member\n1,Bern,2025-01-01,perhaps": "true or false",
        "age,city,seen,member\n1,Bern": "2 in row 1",
        "": "at least one row",
    }.items():
        rows.fill(text)
        page.get_by_role("button", name="Predict these rows").click()
        holds(page, "#problem", words)
        box = page.locator("#problem").bounding_box()
        assert 0 < box["y"] < box["y"] + box["height"] < page.viewport_size["height"]  # seen wherever the page is
        pressed = page.get_by_role("button", name="Predict these rows").bounding_box()
        assert pressed["y"] + pressed["height"] <= box["y"]  # and not covered
    page.get_by_role("button", name="Close").click()
    assert page.locator("#problem").is_hidden()

    page.evaluate('localStorage[Object.keys(localStorage)[0]] = \'{"inputs": {}, "labels": ["no"]}\'')
    page.reload()
    holds(page, "#problem", "column")  # stored corrections that the model rejects can be forgotten
    page.get_by_role("button", name="Forget everything").click()
    holds(page, "#status", "Back to the model as it was.")


def test_a_page_of_numbers_names_what_it_predicts_and_asks_for(opened: Callable[..., Any]) -> None:
    page = opened("price")
    assert re.fullmatch(r"price: [\d.]+", page.locator("#verdict").text_content())
    assert page.locator("#teach-title").text_content() == "Wrong? Give the right answer"
    page.get_by_role("button", name="Train on it").click()
    holds(page, "#problem", "The right answer must be a number.\nFound: a gap\nFix: enter it")
    page.get_by_label("Rows as CSV").fill("area\n33")
    page.get_by_role("button", name="Predict these rows").click()
    holds(page, "caption", "1 row predicted")
    assert len(page.locator("td").first.text_content()) < 12  # digits of float32, not of float64


def test_a_sound_becomes_segments_that_train(opened: Callable[..., Any], bundles: Path) -> None:
    page = opened("tones")
    page.get_by_label("Open a sound file").set_input_files(bundles / "sounds" / "5.wav")
    page.locator(".segment").first.wait_for()
    assert "Recording of 2.0 seconds" in page.locator(".wave").get_attribute("aria-label")
    page.get_by_role("button", name="Train on this recording").click()
    holds(page, "#status", "Trained for")
    assert unnamed(page) == []
    page.get_by_role("button", name="Record", exact=True).click()
    page.wait_for_timeout(300)
    page.get_by_role("button", name="Stop recording").click()
    page.locator(".wave[aria-label^='Recording of']:not([aria-label*=' 2.0 '])").wait_for()
    page.get_by_label("Open a sound file").set_input_files(bundles / "shop.csv")
    holds(page, "#problem", "must be a sound")


def test_an_export_with_other_files_of_onnxruntime_is_no_cache_hit(
    bundles: Path, runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    (other / "dist").mkdir(parents=True)
    for name in ("package.json", *(f"dist/{name}" for name in FILES)):
        (other / name).write_bytes(Path(runtime, name).read_bytes() + b"\n")
    arguments = ["digits", "--output", "digits_page", "--page", "--runtime"]
    monkeypatch.chdir(bundles)
    export.run([*arguments, runtime])
    assert "cached" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="must not exist yet"):
        export.run([*arguments, str(other)])
    with pytest.raises(TrainError, match="needs the files of onnxruntime-web"):
        export.run([*arguments, "none"])
    (tmp_path / "node_modules").mkdir()
    other.rename(tmp_path / "node_modules" / "onnxruntime-web")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(TrainError, match=r"no node_modules with 1\.30\.0, and no npm"):
        runtime_files()


def test_a_page_needs_the_runs_rows_and_a_runtime(
    bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="--runtime names the runtime of a page"):
        export.run([str(bundles / "digits"), "--output", str(tmp_path / "a"), "--runtime", "x"])
    with pytest.raises(TrainError, match=r"needs the files of onnxruntime-web(.|\n)*--runtime node_modules"):
        export.run([str(bundles / "digits"), "--output", str(tmp_path / "a"), "--page", "--runtime", str(tmp_path)])
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrainError, match=r"no node_modules with 1\.30\.0, and no npm"):
        export.run([str(bundles / "digits"), "--output", str(tmp_path / "a"), "--page"])
    copy = tmp_path / "copy"
    shutil.copytree(bundles, copy)
    config = copy / "shop" / "config.yaml"
    config.write_text(config.read_text().replace("path: shop.csv", f"path: {copy / 'shop.csv'}"))
    (copy / "shop.csv").write_text("\n".join((copy / "shop.csv").read_text().splitlines()[:-1]))
    with pytest.raises(ConfigError, match="other rows than those of the run"):
        export.run([str(copy / "shop"), "--output", str(tmp_path / "a"), "--page"])
    assert not (tmp_path / "a").exists()
