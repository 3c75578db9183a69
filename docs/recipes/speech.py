"""Speech of the voices of espeak-ng and of people, and noises, for the recipes of sound."""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile
from scipy.signal import resample_poly

RATE = 16000
RECORDED = Path("/usr/share/pocketsphinx/test/data")  # apt-get install pocketsphinx-testdata
NOISES = ("white", "brown", "hum", "clicks", "pink", "engine", "wind")


def needs_espeak() -> None:
    """Raise if espeak-ng is not installed."""
    if shutil.which("espeak-ng") is None:
        raise SystemExit("This recipe needs espeak-ng: apt-get install espeak-ng, or brew install espeak-ng.")


def speak(text: str, voice: str, speed: int = 160, pitch: int = 50) -> np.ndarray:
    """Return a text, spoken by a voice such as en-us+f2: float32 at 16 kHz, at most 0.5, without silence around it."""
    command = ["espeak-ng", "--stdout", "-v", voice, "-s", str(speed), "-p", str(pitch), text]
    content = subprocess.run(command, check=True, capture_output=True).stdout
    sound, rate = soundfile.read(io.BytesIO(content), dtype="float32")
    sound = resample_poly(sound, RATE // 50, rate // 50).astype(np.float32)
    loud = np.flatnonzero(np.abs(sound) > 0.02 * np.abs(sound).max())
    sound = sound[loud[0] : loud[-1] + 1]
    return sound / (2 * np.abs(sound).max())


def recorded() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield recordings of people, float32 at 16 kHz, and which of their samples are speech.

    Speech is where the power of 30 ms is at most 35 dB below the loudest one, pauses of up to 0.2 s included.
    """
    for file in sorted([*RECORDED.glob("*/*.wav"), *RECORDED.glob("*.raw")]):
        of_raw = {"samplerate": RATE, "channels": 1, "format": "RAW", "subtype": "PCM_16"}
        sound, _ = soundfile.read(file, dtype="float32", **(of_raw if file.suffix == ".raw" else {}))
        frames = sound[: len(sound) // 160 * 160].reshape(-1, 160)
        power = np.convolve((frames**2).mean(axis=1), np.ones(3) / 3, "same")
        loud = np.flatnonzero(power > power.max() * 10**-3.5)
        speech = np.zeros(len(frames), bool)
        for start, end in zip(loud, np.append(loud[1:], loud[-1]), strict=True):
            speech[start : end if end - start <= 20 else start + 1] = True
        yield frames.ravel(), np.repeat(speech, 160)


def buzz(words: int, random: np.random.Generator) -> np.ndarray:
    """Return vowels, a pulse train through formants: speech enough for a test that has no espeak-ng."""
    time = np.arange(int(0.3 * words * RATE)) / RATE
    pitch, formants = random.uniform(90, 240), random.uniform([300, 900], [800, 2500])
    tones = np.arange(1, 20)[:, None]
    gain = sum(1 / (1 + ((tones * pitch - formant) / 120) ** 2) for formant in formants)
    sound = (gain * np.sin(2 * np.pi * pitch * tones * time)).sum(axis=0) * (1.2 + np.sin(2 * np.pi * 4 * time))
    return (sound / (2 * np.abs(sound).max())).astype(np.float32)


def noise(kind: str, length: int, random: np.random.Generator) -> np.ndarray:
    """Return a noise of unit power."""
    time, white = np.arange(length) / RATE, random.standard_normal(length)
    spectrum, frequency = np.fft.rfft(white), np.maximum(np.fft.rfftfreq(length, 1 / RATE), 20)
    slow = np.interp(time, np.arange(0, time[-1] + 1, 0.7), random.uniform(0, 1, int((time[-1] + 1) / 0.7) + 1))
    if kind == "white":
        sound = white
    elif kind in ("brown", "pink", "wind"):
        sound = np.fft.irfft(spectrum / frequency ** (0.5 if kind == "pink" else 1), length)
        sound = sound * (slow if kind == "wind" else 1)
    elif kind == "clicks":
        sound = 0.05 * white + 20 * white * (random.random(length) < 0.001)
    else:  # hum or engine: a tone with overtones, steady or with changing speed
        base = random.uniform(45, 120) * (1 if kind == "hum" else 1 + slow)
        phase = 2 * np.pi * np.cumsum(base * np.ones(length)) / RATE
        sound = sum(np.sin(k * phase + k) / k for k in range(1, 12)) + 0.2 * white
    return (sound / np.sqrt(np.mean(sound**2))).astype(np.float32)
