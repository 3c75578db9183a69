"""A wake word for livekit-wakeword: a small head on its frozen embedding of speech."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import soundfile
from recipe import main
from speech import NOISES, RATE, buzz, needs_espeak, noise, speak

PACKAGE = "livekit-wakeword"
NEEDS = ("soundfile", "livekit.wakeword")
METRIC = "average_precision"
CHECK = "F1 of WakeWordModel's detections"
WORD = "hello computer"
OTHERS = (
    *(
        "hello",
        "computer",
        "yellow commuter",
        "hello my friend",
        "the computer is off",
        "low pewter",
        "hollow compound",
    ),
    *("turn on the light", "what time is it", "play some music", "good morning", "set a timer for ten minutes"),
    *("hello peter", "a new commuter train", "call my mother", "is it going to rain tomorrow", "jello and computing"),
)
LANGUAGES = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-029")
# part → clips of the word, clips of other words, voices, noises: those of the test part are in no other one
PARTS = {
    "train": (300, 600, ("f1", "f2", "m1", "m2", "m3", "Andy", "Annie", "klatt", "steph", "travis"), NOISES[:4]),
    "validation": (50, 100, ("f3", "m4", "linda"), NOISES[:4]),
    "test": (100, 200, ("f4", "f5", "m5", "m7", "belinda", "zac"), NOISES[4:]),
}
WINDOW, STEP = 2 * RATE, 1280  # samples that the model listens to, and from one call to the next one
EMBEDDINGS, FRAMES, STRIDE = 16, 76, 8  # of a window; spectra of an embedding; spectra to the next one


def rows(folder: Path, short: bool) -> None:
    """Write the embeddings of clips of two seconds, streams of words to test on, and a head that is not trained."""
    if not short:
        needs_espeak()
    random, embed = np.random.default_rng(0), _embedding()
    for part, (count, others, voices, noises) in PARTS.items():
        y = np.repeat([1, 0], (6, 6) if short else (count, others))
        clips = [_clip(bool(is_word), voices, noises, random, short) for is_word in y]
        X = np.stack([embed(clip) for clip in clips])
        np.savez(folder / f"{part}.npz", X=X, y=y)
        if part == "train":
            onnx.save(_head(X.mean(axis=(0, 1)), X.std(axis=(0, 1)), random), folder / "before.onnx")
    _, _, voices, noises = PARTS["test"]
    for number in range(1 if short else 4):
        sound, times = _stream(voices, noises, random, short)
        soundfile.write(folder / f"stream_{number}.wav", sound, RATE)
        np.savetxt(folder / f"stream_{number}.txt", times)


def dropin(model: Path, folder: Path) -> float:
    """Return F1 of the detections in the streams, heard as WakeWordListener hears them, at its threshold 0.5."""
    from livekit.wakeword import WakeWordModel

    listener = WakeWordModel(models=[model])
    right = wrong = missed = 0
    for file in sorted(folder.glob("stream_*.wav")):
        sound, _ = soundfile.read(file, dtype="int16")
        heard, pause = [], 0
        for end in range(WINDOW, len(sound), STEP):
            if end >= pause and listener.predict(sound[end - WINDOW : end])[model.stem] >= 0.5:
                heard.append(end / RATE)
                pause = end + 2 * RATE  # the listener's `debounce`
        for start, end in np.loadtxt(file.with_suffix(".txt"), ndmin=2):
            hits = [time for time in heard if start < time < end + 1.5]
            heard = [time for time in heard if time not in hits]
            right, missed = right + bool(hits), missed + (not hits)
        wrong += len(heard)
    return 2 * right / max(1, 2 * right + wrong + missed)


def picture(folder: Path):
    """Return the score along a test stream."""
    import matplotlib.pyplot as plt
    from livekit.wakeword import WakeWordModel

    file = folder / "stream_0.wav"
    sound, _ = soundfile.read(file, dtype="int16")
    listener = WakeWordModel(models=[folder / "before.onnx", folder / "trained.onnx"])
    ends = range(WINDOW, len(sound), STEP)
    scores = [listener.predict(sound[end - WINDOW : end]) for end in ends]
    figure, (wave, axes) = plt.subplots(2, 1, figsize=(8, 3.8), sharex=True)
    wave.plot(np.arange(len(sound)) / RATE, sound, lw=0.3, color="gray")
    wave.set_ylabel("stream")
    for name in ("before", "trained"):
        axes.plot([end / RATE for end in ends], [score[name] for score in scores], label=f"{name}.onnx")
    for place, (start, end) in enumerate(np.loadtxt(file.with_suffix(".txt"), ndmin=2)):
        axes.axvspan(start, end, alpha=0.15, color="green", label=None if place else f"“{WORD}”")
    axes.axhline(0.5, lw=0.5, color="black")
    axes.set(xlabel="seconds", ylabel="score", ylim=(0, 1))
    figure.legend(loc="lower center", bbox_to_anchor=(0.5, 0.89), ncols=3)
    return figure


def _embedding():
    """Return the function from two seconds of sound to [16, 96], by the two frozen models of the package."""
    from livekit.wakeword.models import MelSpectrogramFrontend, SpeechEmbedding
    from livekit.wakeword.resources import get_embedding_model_path, get_mel_model_path

    spectra, embedding = MelSpectrogramFrontend(get_mel_model_path()), SpeechEmbedding(get_embedding_model_path())

    def embed(clip: np.ndarray) -> np.ndarray:
        frames = spectra(clip)[0]
        starts = range(0, len(frames) - FRAMES + 1, STRIDE)
        return embedding(np.stack([frames[start : start + FRAMES] for start in starts]))[-EMBEDDINGS:]

    return embed


def _head(mean: np.ndarray, deviation: np.ndarray, random: np.random.Generator) -> onnx.ModelProto:
    """Return a head [N, 16, 96] → [N, 1]: standardized embeddings, 32 units, one score."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> wake_word (float[N, 16, 96] embeddings) => (float[N, 1] score) {
        centred = Sub(embeddings, mean)
        scaled = Div(centred, deviation)
        flat = Flatten(scaled)
        hidden = Gemm(flat, hidden_weight, hidden_bias)
        active = Relu(hidden)
        logit = Gemm(active, score_weight, score_bias)
        score = Sigmoid(logit)
        }"""
    )
    weights = {
        "mean": mean,
        "deviation": deviation,
        "hidden_weight": random.normal(0, 1536**-0.5, (1536, 32)),
        "hidden_bias": np.zeros(32),
        "score_weight": random.normal(0, 32**-0.5, (32, 1)),
        "score_bias": np.zeros(1),
    }
    arrays = [onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    model.graph.initializer.extend(arrays)
    return model


def _spoken(is_word: bool, voices, random: np.random.Generator, short: bool) -> np.ndarray:
    """Return the wake word, or other words, by a random voice."""
    text = WORD if is_word else str(random.choice(OTHERS))
    voice = f"{random.choice(LANGUAGES)}+{random.choice(voices)}"
    speed, pitch = int(random.integers(130, 200)), int(random.integers(20, 80))
    return buzz(1 + 2 * is_word, random) if short else speak(text, voice, speed, pitch)


def _clip(is_word: bool, voices, noises, random: np.random.Generator, short: bool) -> np.ndarray:
    """Return two seconds with noise, in which the speech ends; of the word, within the last 0.4 seconds.

    Other words may come before. A third of the clips without the word have its beginning only.
    """
    begins = not is_word and random.random() < 0.33
    speech = _spoken(is_word or begins, voices, random, short)
    if begins:
        speech = speech[: int(len(speech) * random.uniform(0.3, 0.65))]
    after = np.zeros(int(random.uniform(0, 0.4 if is_word or begins else 1.2) * RATE), np.float32)
    pause = np.zeros(int(random.uniform(0.1, 1) * RATE), np.float32)
    before = _spoken(False, voices, random, short) if random.random() < 0.7 else pause
    sound = np.concatenate([np.zeros(WINDOW, np.float32), before, pause, speech, after])[-WINDOW:]
    return _with_noise(sound, sound[sound != 0], noises, random)


def _with_noise(sound: np.ndarray, speech: np.ndarray, noises, random: np.random.Generator) -> np.ndarray:
    scale = np.sqrt(np.mean(speech**2)) * 10 ** (-random.uniform(5, 25) / 20)
    sound = sound + scale * noise(str(random.choice(noises)), len(sound), random)
    return (sound * random.uniform(0.2, 0.9) / np.abs(sound).max()).astype(np.float32)


def _stream(voices, noises, random: np.random.Generator, short: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return a stream of phrases, every third one the wake word, and in seconds the start and end of each word."""
    pieces, times = [np.zeros(2 * RATE, np.float32)], []
    for number in range(3 if short else 12):
        speech = _spoken(number % 3 == 1, voices, random, short)
        start = sum(map(len, pieces)) / RATE
        if number % 3 == 1:
            times.append((start, start + len(speech) / RATE))
        pieces += [speech, np.zeros(int(random.uniform(0.8, 2) * RATE), np.float32)]
    sound = np.concatenate(pieces)
    return _with_noise(sound, sound[sound != 0], noises, random), np.array(times)


if __name__ == "__main__":
    main(sys.modules[__name__], sys.argv[1:])
