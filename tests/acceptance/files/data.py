"""Rows of each kind of data: functions for `data.source.function`, as a user would write them for a model of theirs.

Pictures are crops of scikit-learn's two photographs and matplotlib's portrait, or lines of text drawn with matplotlib's
fonts; electroencephalograms are matplotlib's sample; bytes are files of this interpreter's standard library; sentences
are article 1 of the Universal Declaration of Human Rights; speech and music are synthesised. Every function gives the
same rows every time.
"""

from __future__ import annotations

import functools
import json
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Pair = tuple[np.ndarray, np.ndarray]
SEED = 7
TEXTS = {
    "ar": "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق وقد وهبوا عقلا وضميرا وعليهم أن يعامل "
    "بعضهم بعضا بروح الإخاء",
    "he": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם כולם חוננו בתבונה ובמצפון "
    "לפיכך חובה עליהם לנהוג איש ברעהו ברוח של אחווה",
    "ru": "все люди рождаются свободными и равными в своем достоинстве и правах они наделены "
    "разумом и совестью и должны поступать в отношении друг друга в духе братства",
    "th": "มนุษย์|ทั้งหลาย|เกิด|มา|มี|อิสระ|และ|เสมอภาค|กัน|ใน|เกียรติศักดิ์|และ|สิทธิ|ต่าง|มี|เหตุผล|และ|มโนธรรม|และ|ควร|ปฏิบัติ|ต่อ|กัน|ด้วย|"
    "เจตนารมณ์|แห่ง|ภราดรภาพ",
    "zh": "人人 生而 自由 在 尊严 和 权利 上 一律 平等 他们 赋有 理性 和 良心 并 应 以 兄弟 关系 的 精神 相对待",
}
ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"


@functools.cache
def _photos() -> tuple[np.ndarray, ...]:
    import matplotlib
    from PIL import Image
    from sklearn.datasets import load_sample_images

    face = Image.open(Path(matplotlib.get_data_path(), "sample_data", "grace_hopper.jpg")).convert("RGB")
    return (*load_sample_images().images, np.asarray(face))


def _crop(rng: np.random.Generator, photo: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return a random part of a photograph, scaled to a size: uint8 [height, width, 3]."""
    from PIL import Image

    side = int(rng.integers(min(photo.shape[:2]) // 2, min(photo.shape[:2])))
    top, left = (int(rng.integers(0, size - side + 1)) for size in photo.shape[:2])
    return np.asarray(Image.fromarray(photo[top : top + side, left : left + side]).resize((width, height)))


def _laid_out(pictures: Sequence[np.ndarray], layout: str, scale: float, shift: float) -> np.ndarray:
    stacked = np.stack(pictures).astype(np.float32) * np.float32(scale) + np.float32(shift)
    if layout == "N1HW":
        return stacked.mean(-1, keepdims=True).transpose(0, 3, 1, 2)
    return stacked.transpose(0, 3, 1, 2) if layout == "NCHW" else stacked


def photos(
    rows: int, height: int, width: int, layout: str = "NCHW", scale: float = 1 / 255, shift: float = 0.0, kinds: int = 2
) -> Pair:
    """Crops of photographs: which one is it?"""
    rng, chosen = np.random.default_rng(SEED), _photos()[-kinds:]
    label = np.arange(rows) % kinds
    return _laid_out([_crop(rng, chosen[k], height, width) for k in label], layout, scale, shift), label


def turned(
    rows: int, height: int, width: int, layout: str = "NCHW", scale: float = 1 / 255, shift: float = 0.0, turns: int = 4
) -> Pair:
    """Lines of text, turned by 0, 90, 180 or 270 degrees (of two turns: 0 and 180): by how much?"""
    rng = np.random.default_rng(SEED)
    label = np.arange(rows) % turns
    pictures = []
    for k in label:
        line = _drawn(rng, _word(rng, 8), height if turns == 2 else height // 4, width)
        if turns == 4:
            line = np.tile(line, (4, 1, 1))
        pictures.append(np.rot90(line, k * (4 // turns)))
    return _laid_out(pictures, layout, scale, shift), label


def dense_photos(rows: int, size: int, cells: int) -> Pair:
    """Squares that are half one photograph, half another, and which one each cell of a grid shows."""
    sides, _ = photos(2 * rows, size, size, "NHWC", 1 / 128, -1.0)
    half = size // 2
    pictures = np.concatenate([sides[0::2, :, :half], sides[1::2, :, half:]], axis=2)
    return pictures, np.tile((np.arange(cells) >= cells // 2).astype(int), (rows, cells, 1))


def _word(rng: np.random.Generator, length: int, alphabet: str = ALPHABET) -> str:
    return "".join(alphabet[i] for i in rng.integers(0, len(alphabet), length))


def _drawn(rng: np.random.Generator, text: str, height: int, width: int) -> np.ndarray:
    """Return dark text on a light ground with some noise: uint8 [height, width, 3]."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    fonts = Path(matplotlib.get_data_path(), "fonts", "ttf")
    names = ("DejaVuSans.ttf", "DejaVuSerif.ttf", "DejaVuSansMono-Bold.ttf")
    font = ImageFont.truetype(str(fonts / names[int(rng.integers(len(names)))]), int(height * 0.7))
    canvas = Image.new("RGB", (int(font.getlength(text)) + 8, height), tuple(rng.integers(200, 256, 3).tolist()))
    ImageDraw.Draw(canvas).text((4, height * 0.08), text, tuple(rng.integers(0, 90, 3).tolist()), font=font)
    array = np.asarray(canvas.resize((width, height))).astype(np.float32)
    return (array + rng.normal(0, 6, array.shape)).clip(0, 255).astype(np.uint8)


def captchas(
    rows: int,
    height: int,
    width: int,
    layout: str = "NCHW",
    scale: float = 1 / 255,
    shift: float = 0.0,
    length: int = 5,
    alphabet: str = ALPHABET,
    first: int = 0,
    place: int | None = None,
) -> Pair:
    """Drawn words, and the index of each character in the alphabet (from `first` on), or of the one at a place."""
    rng = np.random.default_rng(SEED)
    words = [_word(rng, length, alphabet) for _ in range(rows)]
    label = np.array([[alphabet.index(c) + first for c in word] for word in words])
    pictures = [_drawn(rng, word, height, width) for word in words]
    return _laid_out(pictures, layout, scale, shift), label if place is None else label[:, place]


def pages(rows: int, size: int, scale: float = 1 / 255, shift: float = 0.0) -> Pair:
    """Pages with lines of text, and the map of where text is: [N, 1, size, size]."""
    rng = np.random.default_rng(SEED)
    pictures, maps = [], []
    for _ in range(rows):
        page, mask = np.full((size, size, 3), 235, np.uint8), np.zeros((1, size, size), np.float32)
        for _ in range(3):
            height, width = int(rng.integers(size // 12, size // 8)), int(rng.integers(size // 3, size - 8))
            top, left = int(rng.integers(0, size - height)), int(rng.integers(0, size - width))
            page[top : top + height, left : left + width] = _drawn(rng, _word(rng, 9), height, width)
            mask[:, top : top + height, left : left + width] = 1
        pictures.append(page)
        maps.append(mask)
    return _laid_out(pictures, "NCHW", scale, shift), np.stack(maps)


def noisy(teacher: str, output: str, of: str, strength: float = 0.1, **params: Any) -> Pair:
    """Rows of another function with noise on them, and what the file itself gives for the clean ones.

    Fine-tuned on these, a detector becomes steadier without anybody's boxes.
    """
    import onnxruntime

    maker: Callable[..., Pair] = globals()[of]
    clean, _ = maker(**params)
    session = onnxruntime.InferenceSession(teacher, providers=["CPUExecutionProvider"])
    [name] = [i.name for i in session.get_inputs()]
    label = np.concatenate([session.run([output], {name: row[None]})[0] for row in clean])
    rng = np.random.default_rng(SEED)
    return clean + (strength * clean.std() * rng.standard_normal(clean.shape)).astype(np.float32), label


def file_types(rows: int, labels: str, beginning: int = 1024, end: int = 1024, padding: int = 256) -> Pair:
    """The first and last bytes of files of the standard library and of installed packages: of which type are they?

    `labels` is the package's own list of types, a JSON file of which `target_labels_space` names them in order.
    """
    types = json.loads(Path(labels).read_text())["target_labels_space"]
    suffixes = {".py": "python", ".so": "elf", ".txt": "txt", ".png": "png", ".pyc": "pythonbytecode", ".ttf": "ttf"}
    suffixes |= {".csv": "csv", ".json": "json", ".svg": "svg", ".html": "html", ".css": "css", ".js": "javascript"}
    found: dict[str, list[Path]] = {}
    for file in sorted(Path(sysconfig.get_paths()["purelib"]).glob("[a-m]*/**/*")):
        if suffixes.get(file.suffix) in types and file.is_file() and file.stat().st_size > 64:
            found.setdefault(file.suffix, []).append(file)
    inputs, label = [], []
    for i in range(rows):
        suffix = sorted(found)[i % len(found)]
        content = found[suffix][(i // len(found) * 37) % len(found[suffix])].read_bytes()
        row = np.full(beginning + end, padding, np.int32)
        head, tail = content[:4096].lstrip()[:beginning], content[-4096:].rstrip()[-end:]
        row[: len(head)] = list(head)
        row[len(row) - len(tail) :] = list(tail)
        inputs.append(row)
        label.append(types.index(suffixes[suffix]))
    return np.stack(inputs), np.array(label)


def speech(rows: int, samples: int = 512, rate: int = 16000, table: bool = True) -> Pair:
    """Windows of sound: vowels (a pulse train through three formants) or noise: does somebody speak?"""
    rng = np.random.default_rng(SEED)
    label = (np.arange(rows) % 2).astype(np.float32)
    time = np.arange(samples) / rate
    sounds = []
    for spoken in label:
        if spoken:
            pitch, formants = rng.uniform(90, 240), rng.uniform([300, 900, 2200], [800, 2000, 3000])
            k = np.arange(1, int(4000 / pitch))
            gain = sum(1 / (1 + ((k * pitch - f) / 120) ** 2) for f in formants)
            sound = (
                gain[:, None] * np.sin(2 * np.pi * pitch * k[:, None] * time + rng.uniform(0, 6, (len(k), 1)))
            ).sum(0)
            sound *= rng.uniform(0.1, 0.5) / np.abs(sound).max()
        else:
            sound = rng.normal(0, rng.uniform(0.01, 0.2), samples)
        sounds.append(sound + rng.normal(0, 0.003, samples))
    return np.array(sounds, np.float32), label[:, None] if table else label


def notes(rows: int, samples: int, frames: int, keys: int = 88, lowest: int = 21, rate: int = 22050) -> Pair:
    """Three tones of a piano with overtones in each row, and which keys sound in which frame: [N, frames, keys]."""
    rng = np.random.default_rng(SEED)
    time = np.arange(samples) / rate
    sound, label = np.zeros((rows, samples, 1), np.float32), np.zeros((rows, frames, keys), np.float32)
    for i in range(rows):
        for key in rng.integers(20, 60, 3):
            begin, end = np.sort(rng.uniform(0, samples / rate, 2))
            pitch = 440 * 2 ** ((key + lowest - 69) / 12)
            on = (time >= begin) & (time < end)
            tone = sum(np.sin(2 * np.pi * pitch * k * time) / k for k in range(1, 5))
            sound[i, :, 0] += (0.1 * on * tone).astype(np.float32)
            label[i, int(begin * frames * rate / samples) : int(end * frames * rate / samples), key] = 1
    return sound + rng.normal(0, 1e-3, sound.shape).astype(np.float32), label  # no recording has perfect silence


def _eeg() -> np.ndarray:
    """Return matplotlib's sample of an electroencephalogram, [4, 800], each channel scaled."""
    import matplotlib

    raw = np.fromfile(Path(matplotlib.get_data_path(), "sample_data", "eeg.dat"), float).reshape(800, 4).T
    return (raw - raw.mean(1, keepdims=True)) / raw.std(1, keepdims=True)


def eeg(rows: int, channels: int, samples: int, classes: int = 4) -> Pair:
    """Windows of an electroencephalogram as a spectrogram [channels, samples], and a class for each sample.

    The class is which quarter of its range the signal's power is in there.
    """
    rng, signal = np.random.default_rng(SEED), _eeg()
    width = 2 * channels
    inputs, label = [], []
    for _ in range(rows):
        channel = signal[int(rng.integers(4))]
        starts = rng.integers(0, 800 - width) + np.arange(samples) * max(1, (800 - width) // (2 * samples)) // 2
        windows = np.stack([np.take(channel, np.arange(s, s + width), mode="wrap") for s in starts])
        power = np.log1p(np.abs(np.fft.rfft(windows * np.hanning(width)))[:, 1 : channels + 1])
        inputs.append(power.T)
        total = power.sum(1)
        label.append(np.clip((total - total.min()) / (np.ptp(total) + 1e-9) * classes, 0, classes - 1).astype(int))
    return np.array(inputs, np.float32), np.array(label)


def series(rows: int, channels: int, samples: int) -> Pair:
    """Windows of an electroencephalogram, shifted from channel to channel, and the power that comes next: [N, 1]."""
    rng, signal = np.random.default_rng(SEED), _eeg()
    inputs, label = [], []
    for _ in range(rows):
        channel, start = signal[int(rng.integers(4))], int(rng.integers(800))
        inputs.append([np.take(channel, start + shift + np.arange(samples), mode="wrap") for shift in range(channels)])
        label.append([np.take(channel, start + samples + channels + np.arange(16), mode="wrap").std()])
    return np.array(inputs, np.float32), np.array(label, np.float32)


def sleep_spindles(rows: int, samples: int = 7500, bands: int = 15, steps: int = 30) -> dict[str, np.ndarray]:
    """An electroencephalogram with bursts of 12 Hz, its spectrogram, and per step: is one there, centre, length."""
    rng, signal, rate = np.random.default_rng(SEED), _eeg(), samples // 30
    raw, bursts = np.zeros((rows, 1, samples)), np.zeros((rows, steps, 3), np.float32)
    for i in range(rows):
        raw[i, 0] = np.resize(signal[i % 4], samples)
        for step in rng.choice(steps, 6, replace=False):
            begin, length = step * rate, int(rate * rng.uniform(0.5, 1))
            time = np.arange(length) / rate
            raw[i, 0, begin : begin + length] += 2 * np.hanning(length) * np.sin(2 * np.pi * 12 * time)
            bursts[i, step] = 1, length / 2 / rate, length / rate
    padded = np.pad(raw[:, 0], ((0, 0), (64, 63)), mode="wrap")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 128, axis=-1)
    spectrum = np.log1p(np.abs(np.fft.rfft(windows * np.hanning(128)))[..., 1 : bands + 1]).transpose(0, 2, 1)
    return {"raw_signal": raw.astype(np.float32), "spectrogram": spectrum.astype(np.float32), "y": bursts}


def _ids(vocabulary: str, text: str, other: int = 1) -> list[int]:
    """Return the numbers of characters by a package's own vocabulary, or by their order in Unicode without one."""
    if not vocabulary:
        return [ord(c) for c in text]
    table = json.loads(Path(vocabulary).read_text())
    while isinstance(table, dict) and len(table) < 8:  # the first table of those in the file
        table = next(v for v in table.values() if isinstance(v, dict | list))
    if isinstance(table, list):
        table = {c: i for i, c in enumerate(table)}
    found = [table.get(c, other) for c in text]
    return [int(f[0] if isinstance(f, list) else f) for f in found]


def letters(
    rows: int,
    language: str,
    length: int,
    classes: int,
    vocabulary: str = "",
    largest: int = 10**6,
    kind: str = "int64",
    inputs: Sequence[str] = (),
    lengths: str | None = None,
) -> dict[str, np.ndarray] | Pair:
    """Pieces of a sentence as numbers of characters, and a class for each: the next one's number modulo the classes.

    Where `inputs` are named, the first is the characters, another is 0, and `lengths` is how many there are.
    """
    ids = np.array(_ids(vocabulary, TEXTS[language].replace("|", ""))) % largest
    starts = np.arange(rows) * 3 % (len(ids) - length - 1)
    windows = np.stack([ids[s : s + length] for s in starts]).astype(kind)
    label = np.stack([ids[s + 1 : s + length + 1] for s in starts]) % classes
    if not inputs:
        return windows, label
    fed = {name: np.zeros_like(windows) if k else windows for k, name in enumerate(inputs)}
    return {**fed, **({lengths: np.full(rows, length)} if lengths else {}), "y": label}


def word_ends(
    rows: int, vocabulary: str = "", length: int = 21, inputs: Sequence[str] = ()
) -> dict[str, np.ndarray] | Pair:
    """Thai text without spaces: does a word begin at the middle character (where `inputs` are named), or at each?

    The first input is the characters, others are what stands for their types and syllables: the number modulo 12.
    """
    words = TEXTS["th"].split("|")
    text, begins = "".join(words), np.concatenate([[1, *[0] * (len(w) - 1)] for w in words])
    ids = np.array(_ids(vocabulary, text)) if vocabulary else np.array([ord(c) - 0x0E00 for c in text]).clip(1, 90)
    starts = np.arange(rows) % (len(text) - length)
    windows = np.stack([ids[s : s + length] for s in starts])
    if not inputs:
        return windows, np.stack([begins[s : s + length] for s in starts]).astype(np.float32)
    fed = {name: windows.astype(np.float32) % (12 if k else 1000) for k, name in enumerate(inputs)}
    return {**fed, "y": np.array([begins[s + length // 2] for s in starts])}
