"""Voice activity in loud noise: the model of silero-vad, fine-tuned on recordings with noise."""

from __future__ import annotations

import csv
import importlib.util
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import soundfile
from recipe import main
from speech import NOISES, RATE, RECORDED, buzz, needs_espeak, noise, recorded, speak

PACKAGE = "silero-vad"
NEEDS = ("soundfile", "torch", "silero_vad")
METRIC = "roc_auc"
CHECK = "F1 of get_speech_timestamps_sequence"
SENTENCES = {
    "en-us": "All human beings are born free and equal in dignity and rights.",
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "fr-fr": "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "es": "Todos los seres humanos nacen libres e iguales en dignidad y derechos.",
    "tr": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar.",
    "sw": "Watu wote wamezaliwa huru, hadhi na haki zao ni sawa.",
    "pl": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.",
    "vi": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi.",
}
# part → recordings, languages, voices, noises: those of the test part are in no other one
PARTS = {
    "train": (60, ("en-us", "de", "fr-fr", "es", "tr"), ("f1", "f2", "m1", "m2", "m3", "klatt"), NOISES[:4]),
    "validation": (10, ("en-us", "de", "fr-fr", "es", "tr"), ("f3", "m4"), NOISES[:4]),
    "test": (20, ("sw", "pl", "vi"), ("f4", "f5", "m5", "m7"), NOISES[4:]),
}
SECONDS, RATIO = 15, (-8, 6)  # of a recording; its signal-to-noise ratio in dB


def rows(folder: Path, short: bool) -> None:
    """Write recordings of 15 seconds, and a table of the segments of speech in them."""
    shutil.copy(_file(), folder / "before.onnx")
    (folder / "sounds").mkdir(exist_ok=True)
    random, table = np.random.default_rng(0), []
    if not short:
        needs_espeak()
    for part, (count, languages, voices, noises) in PARTS.items():
        for number in range(2 if short else count):
            sound, segments = _recording(languages, voices, noises, random, short)
            name = f"{part}_{number:02}.wav"
            soundfile.write(folder / "sounds" / name, sound, RATE)
            table += [[name, f"{start / RATE:.3f}", f"{end / RATE:.3f}", 1, part] for start, end in segments]
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["file", "start", "end", "label", "part"], *table])


def dropin(model: Path, folder: Path) -> float:
    """Return F1, by samples, of the segments that silero-vad finds in the test recordings at its own thresholds."""
    with warnings.catch_warnings(action="ignore"):
        from silero_vad import SileroVADSequence

    network = SileroVADSequence(str(model))
    if RECORDED.exists():
        people = [*_with_noise(recorded())]
        print(
            f"{model.name}: on recorded speech, F1 {_f1(network, people):.3f}, ROC AUC {_roc_auc(network, people):.3f}"
        )
    truth = _truth(folder, "test").items()
    return _f1(network, ((soundfile.read(file, dtype="float32")[0], speech) for file, speech in truth))


def _f1(network: object, recordings: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    """Return F1 of the segments in recordings, each with the samples that are speech."""
    from silero_vad import get_speech_timestamps_sequence

    true = found = both = 0
    for sound, speech in recordings:
        guess = np.zeros(len(sound), bool)
        for segment in get_speech_timestamps_sequence(sound, network):
            guess[segment["start"] : segment["end"]] = True
        true, found, both = true + speech.sum(), found + guess.sum(), both + (guess & speech).sum()
    return float(2 * both / max(1, true + found))


def _roc_auc(network: object, recordings: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    """Return the ROC AUC of the probabilities of windows, which are speech if most of their samples are."""
    from sklearn.metrics import roc_auc_score

    chances, labels = list[np.ndarray](), list[np.ndarray]()
    for sound, speech in recordings:
        count = len(sound) // 512
        chances.append(np.ravel(network.audio_forward(sound))[:count])
        labels.append(speech[: count * 512].reshape(count, 512).mean(axis=1) > 0.5)
    return float(roc_auc_score(np.concatenate(labels), np.concatenate(chances)))


def picture(folder: Path):
    """Return the probability of speech along the test recording with the loudest noise, before and after."""
    import matplotlib.pyplot as plt
    from silero_vad import SileroVADSequence

    recordings = [(soundfile.read(file, dtype="float32")[0], speech) for file, speech in _truth(folder, "test").items()]
    sound, speech = max(recordings, key=lambda pair: np.mean(pair[0][~pair[1]] ** 2) / np.mean(pair[0][pair[1]] ** 2))
    figure, (wave, axes) = plt.subplots(2, 1, figsize=(8, 3.8), sharex=True)
    time = np.arange(len(sound)) / RATE
    wave.plot(time, sound, lw=0.3, color="gray")
    wave.set_ylabel("recording")
    for name in ("before.onnx", "trained.onnx"):
        chances = SileroVADSequence(str(folder / name)).audio_forward(sound)
        axes.plot(np.arange(len(chances)) * 512 / RATE, chances, label=name)
    axes.fill_between(time, speech, step="mid", alpha=0.15, color="green", label="speech")
    axes.set(xlabel="seconds", ylabel="probability of speech", ylim=(0, 1))
    figure.legend(loc="lower center", bbox_to_anchor=(0.5, 0.89), ncols=3)
    return figure


def _file() -> Path:
    [place] = importlib.util.find_spec("silero_vad").submodule_search_locations
    return Path(place) / "data" / "silero_vad_16k_sequence.onnx"


def _recording(languages, voices, noises, random: np.random.Generator, short: bool):
    """Return a recording, and the start and end of each piece of speech, in samples."""
    sound, segments, place = np.zeros(SECONDS * RATE, np.float32), [], int(random.uniform(0.5, 2) * RATE)
    while True:
        language = str(random.choice(languages))
        words = SENTENCES[language].split()[: int(random.integers(2, 9))]
        voice = f"{language}+{random.choice(voices)}"
        speed, pitch = int(random.integers(120, 220)), int(random.integers(20, 80))
        speech = buzz(len(words), random) if short else speak(" ".join(words), voice, speed, pitch)
        if place + len(speech) > len(sound):
            break
        sound[place : place + len(speech)] = speech
        segments.append((place, place + len(speech)))
        place += len(speech) + int(random.uniform(0.5, 3) * RATE)
    power = np.mean(np.concatenate([sound[start:end] for start, end in segments]) ** 2)
    scale = np.sqrt(power) * 10 ** (-random.uniform(*RATIO) / 20)
    sound = sound + scale * noise(str(random.choice(noises)), len(sound), random)
    return sound * random.uniform(0.2, 0.9) / np.abs(sound).max(), segments


def _with_noise(recordings: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield each recording, with 2 to 4 seconds before and after it, in each noise of the test part."""
    random = np.random.default_rng(0)
    for sound, speech in recordings:
        around = [int(length * RATE) for length in random.uniform(2, 4, 2)]
        sound, speech = np.pad(sound, around), np.pad(speech, around)
        scale = np.sqrt(np.mean(sound[speech] ** 2)) * 10 ** (-random.uniform(*RATIO) / 20)
        for kind in NOISES[4:]:
            noisy = sound + scale * noise(kind, len(sound), random)
            yield (noisy * random.uniform(0.2, 0.9) / np.abs(noisy).max()).astype(np.float32), speech


def _truth(folder: Path, part: str) -> dict[Path, np.ndarray]:
    """Return which samples of each recording of a part are speech."""
    truth: dict[Path, np.ndarray] = {}
    with (folder / "labels.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["part"] == part:
                speech = truth.setdefault(folder / "sounds" / row["file"], np.zeros(SECONDS * RATE, bool))
                speech[int(float(row["start"]) * RATE) : int(float(row["end"]) * RATE)] = True
    return truth


if __name__ == "__main__":
    main(sys.modules[__name__], sys.argv[1:])
