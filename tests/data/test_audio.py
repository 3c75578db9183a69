"""Folders of sound files: windows, rates, labels, segments, parts, copies, streams, and files that are rejected."""

import numpy as np
import pytest
import soundfile

from ortpipe.app.lookup import FoundModel
from ortpipe.app.prediction import predictions
from ortpipe.data.load import DataConfig, load
from ortpipe.data.parts import SplitConfig
from ortpipe.data.sources.audio import Audio, AugmentSound
from ortpipe.errors import ConfigError, DataError
from ortpipe.facts_json import read_metadata
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.networks.mlp import MLP
from ortpipe.stages.convert.stage import convert

RATE = 8000
SIZES = {"rate": RATE, "samples": 100}
BY_FOLDER = SplitConfig(test=None, column="folder")


def sound(path, samples=400, rate=RATE, **how):
    """Write a sound whose samples follow from its name, and return them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(list(path.name.encode())).uniform(-0.5, 0.5, samples).astype(np.float32)
    soundfile.write(path, noise, rate, **{"subtype": "FLOAT", **how})
    return noise


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        sound(tmp_path / "high" / f"h{number}.wav")
        sound(tmp_path / "low" / "more" / f"l{number}.wav")
    return tmp_path


@pytest.fixture
def parts(tmp_path):
    for name in ("train/a/1.wav", "train/b/2.wav", "validation/a/3.wav", "test/b/4.wav"):
        sound(tmp_path / name)
    return tmp_path


def test_rows_are_the_windows_of_each_file_in_the_order_of_time(folder):
    rows, again = (Audio(path=str(folder), **SIZES, hop=60)() for _ in range(2))
    assert rows.inputs["X"].shape == (6 * 6, 100)
    assert rows.inputs["X"].dtype == np.float32
    files = {file.stem: soundfile.read(file, dtype="float32")[0] for file in folder.rglob("*.wav")}
    windows = [[samples[60 * k :][:100] for k in range(6)] for samples in files.values()]
    for first in range(0, 36, 6):
        [kind] = [w for w in windows if np.array_equal(w[0], rows.inputs["X"][first])]
        np.testing.assert_array_equal(rows.inputs["X"][first : first + 6], kind)
    assert sorted({*rows.label}) == ["high", "low"]
    assert rows.digest() == again.digest()


def test_channels_are_averaged_and_samples_are_scaled(tmp_path):
    stereo = np.stack([np.linspace(0, 0.5, 100), np.full(100, 0.25)], axis=1).astype(np.float32)
    for name in "ab":
        (tmp_path / name).mkdir()
        soundfile.write(tmp_path / name / "1.flac", stereo, RATE)
    rows = Audio(path=str(tmp_path), **SIZES, scale=32768)()
    np.testing.assert_allclose(rows.inputs["X"][0], stereo.mean(axis=1) * 32768, atol=2)


@pytest.mark.parametrize("rate", [16000, 22050, 6000])
def test_a_tone_is_the_same_tone_at_another_rate(tmp_path, rate):
    """The oracle is the sine itself, computed at the rate of the rows."""
    for name in "ab":
        (tmp_path / name).mkdir()
        tone = np.sin(2 * np.pi * 440 * np.arange(rate) / rate)
        soundfile.write(tmp_path / name / "1.wav", tone, rate, subtype="FLOAT")
    [row, _] = Audio(path=str(tmp_path), rate=RATE, samples=RATE)().inputs["X"]
    expected = np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
    np.testing.assert_allclose(row[200:-200], expected[200:-200], atol=2e-3)


def test_windows_have_the_label_of_the_segment_around_their_middle(folder):
    table = "file,start,end,label\nhigh/h0.wav,0.0125,0.025,1\nhigh/h0.wav,0.0375,0.05,1\nlow/more/l0.wav,0,0.025,2\n"
    (folder / "labels.csv").write_text(table + "low/more/l1.wav,0,0.05,0\n")
    source = {"path": str(folder), "labels": str(folder / "labels.csv"), **SIZES}
    rows = Audio(**source, outside=0)()
    labels = {
        name: [int(y) for x, y in zip(rows.inputs["X"], rows.label, strict=True) if x[0] in sound(folder / name)]
        for name in ("high/h0.wav", "low/more/l0.wav", "low/more/l1.wav")
    }
    assert labels == {"high/h0.wav": [0, 1, 0, 1], "low/more/l0.wav": [2, 2, 0, 0], "low/more/l1.wav": [0] * 4}
    assert sorted(Audio(**source)().label.tolist()) == [0] * 4 + [1, 1, 2, 2]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("outside", [0, None])
def test_segments_that_hold_no_middle_of_a_window_are_counted(folder, stream, outside):
    table = "file,start,end,label\nhigh/h0.wav,0,0.005,1\nhigh/h0.wav,0.005,0.02,2\nlow/more/l0.wav,0.049,0.05,1\n"
    (folder / "labels.csv").write_text(table + "low/more/l1.wav,0,0.05,1\n")
    source = {"path": str(folder), "labels": str(folder / "labels.csv"), "outside": outside, "stream": stream, **SIZES}
    split = SplitConfig(0.34, stratify=None, group="file")
    [note] = [note for note in load(DataConfig(Audio(**source), split)).notes if "segments" in note]
    assert note == "2 of 4 segments are ignored: no window has its middle in them"


def test_silence_is_added_to_short_files_at_the_end_that_is_chosen(tmp_path):
    short = {name: sound(tmp_path / name / "1.wav", 30) for name in "ab"}
    for pad, place in (("start", slice(70, 100)), ("end", slice(0, 30))):
        rows = Audio(path=str(tmp_path), **SIZES, pad=pad)()
        row = rows.inputs["X"][rows.label == "a"][0]
        np.testing.assert_array_equal(row[place], short["a"])
        assert np.count_nonzero(row) == 30


def test_streamed_rows_are_those_in_memory(parts, monkeypatch):
    monkeypatch.setattr("ortpipe.data.sound_reader.PIECE", 900)
    augment = AugmentSound(2, noise=(0, 10))
    streamed, kept = (
        load(DataConfig(Audio(path=str(parts), **SIZES, augment=augment, stream=stream), BY_FOLDER))
        for stream in (True, False)
    )
    assert streamed.train.on_disk
    for part in ("train", "validation", "test"):
        pieces = list(getattr(streamed, part).read())
        np.testing.assert_array_equal(np.concatenate([p.inputs["X"] for p in pieces]), getattr(kept, part).inputs["X"])
        np.testing.assert_array_equal(np.concatenate([p.label for p in pieces]), getattr(kept, part).label)


def test_a_random_split_keeps_the_windows_of_a_file_together(folder):
    with pytest.raises(DataError, match=r"Windows of one file must be in one part(.|\n)*split\.group=file"):
        load(DataConfig(Audio(path=str(folder), **SIZES)))
    data = load(DataConfig(Audio(path=str(folder), **SIZES), SplitConfig(0.34, group="file")))
    assert [*data.train.inputs] == ["X"]
    assert (len(data.train), len(data.test)) == (12, 12)
    for file in folder.rglob("*.wav"):
        samples = soundfile.read(file, dtype="float32")[0]
        assert sum(row[0] in samples for row in data.test.inputs["X"]) in (0, 4)
    clips = load(DataConfig(Audio(path=str(folder), rate=RATE, samples=400), SplitConfig(0.34, stratify=None)))
    assert len(clips.test) == 2


def test_only_training_files_have_copies_with_noise_at_the_ratio_and_another_level(parts):
    plain, noisy, again, other = (
        load(DataConfig(Audio(path=str(parts), **SIZES, augment=augment), BY_FOLDER))
        for augment in (None, *(AugmentSound(2, noise=(6, 6), gain=(-3, -3), seed=seed) for seed in (0, 0, 1)))
    )
    assert noisy.digest() == again.digest() != other.digest()
    assert noisy.test.digest() == plain.test.digest()
    assert noisy.validation.digest() == plain.validation.digest()
    x, rows = plain.train.inputs["X"], noisy.train.inputs["X"]
    np.testing.assert_array_equal(rows[:8], x)
    np.testing.assert_array_equal(noisy.train.label, np.tile(plain.train.label, 3))
    noise = rows[8:] / 10 ** (-3 / 20) - np.tile(x, (2, 1))
    for first in range(0, 16, 4):  # a file, or a copy of it
        ratio = np.square(x[first % 8 :][:4]).mean() / np.square(noise[first:][:4]).mean()
        assert 10 * np.log10(ratio) == pytest.approx(6, abs=1e-2)
    assert not np.allclose(noise[:8], noise[8:])


def test_noise_may_come_from_files(parts, tmp_path_factory):
    hum = tmp_path_factory.mktemp("noise") / "hum.wav"
    soundfile.write(hum, np.full(50, 0.5), RATE, subtype="FLOAT")
    augment = AugmentSound(noise=(0, 0), sounds=str(hum.parent))
    rows = load(DataConfig(Audio(path=str(parts), **SIZES, augment=augment), BY_FOLDER)).train.inputs["X"]
    (hum.parent / ".trash").mkdir()
    (hum.parent / ".trash" / "1.wav").touch()
    again = load(DataConfig(Audio(path=str(parts), **SIZES, augment=augment), BY_FOLDER)).train.inputs["X"]
    np.testing.assert_array_equal(again, rows)
    added = rows[8:] - rows[:8]
    np.testing.assert_allclose(added[:4], added[0, 0], rtol=1e-3)


def test_noise_that_cannot_be_read_is_named(parts, tmp_path_factory):
    hum = tmp_path_factory.mktemp("noise") / "hum.wav"
    hum.write_text("no sound")
    augment = AugmentSound(noise=(0, 0), sounds=str(hum))
    with pytest.raises(DataError, match=r"1\.wav: its noise .*hum\.wav: Format not recogni"):
        load(DataConfig(Audio(path=str(parts), **SIZES, augment=augment), BY_FOLDER))


def test_noise_has_the_rate_of_the_files(parts, tmp_path_factory):
    hum = tmp_path_factory.mktemp("noise") / "hum.wav"
    soundfile.write(hum, np.sin(np.arange(400)), 2 * RATE, subtype="FLOAT")
    augment = AugmentSound(noise=(0, 0), sounds=str(hum))
    of_files, chosen = (
        load(DataConfig(Audio(path=str(parts), rate=rate, samples=100, augment=augment), BY_FOLDER)).train.inputs["X"]
        for rate in (None, RATE)
    )
    np.testing.assert_array_equal(of_files, chosen)


def test_all_files_that_cannot_be_read_are_listed_by_name(folder):
    broken = {
        "cut": (lambda p: p.write_bytes((folder / "high" / "h0.wav").read_bytes()[:30]), ""),
        "text": (lambda p: p.write_text("no sound"), "Format not recogni"),
        "empty": (lambda p: p.write_bytes(b""), "Format not recogni"),
        "silent": (lambda p: soundfile.write(p, np.zeros(0), RATE), "it has no samples"),
        "short": (lambda p: sound(p, 99), "99 samples, shorter than a window of 100"),
        "nan": (lambda p: soundfile.write(p, np.full(200, np.nan), RATE, subtype="FLOAT"), "not finite"),
    }
    for name, (write, _) in broken.items():
        write(folder / "high" / f"{name}.wav")
    with pytest.raises(DataError) as error:
        Audio(path=str(folder), **SIZES)()
    for name, (_, words) in broken.items():
        [line] = [part for part in str(error.value).split("; ") if f"{name}.wav: " in part]
        assert words in line
    sound(folder / "high" / "fast.wav", rate=16000)
    with pytest.raises(DataError, match=r"16,000 samples per second, others 8,000|8,000 samples .*, others 16,000"):
        Audio(path=str(folder), rate=None, samples=100, pad="end")()


SEGMENTS = {
    "overlapping": ("high/h0.wav,0,0.02,1\nhigh/h0.wav,0.01,0.03,2\n", "must not overlap(.|\n)*h0.wav"),
    "reversed": ("high/h0.wav,2,1,1\n", "start before its end(.|\n)*'2' to '1' in .*h0.wav"),
    "words": ("high/h0.wav,begin,end,1\n", "start before its end(.|\n)*'begin' to 'end'"),
    "behind the end": ("high/h0.wav,7,8,1\n", "must have a label(.|\n)*labels.csv"),
    "twice": ("high/h0.wav,0,1,1\nhigh/h0.wav,0,2,1\n", "h0.wav' again in line 3"),
}


@pytest.mark.parametrize(("rows", "words"), SEGMENTS.values(), ids=SEGMENTS)
def test_segments_without_sense_are_rejected(folder, rows, words):
    (folder / "labels.csv").write_text("file,start,end,label\n" + rows)
    with pytest.raises(DataError, match=words):
        Audio(path=str(folder), labels=str(folder / "labels.csv"), **SIZES)()


def test_segments_of_one_file_are_in_one_part(folder):
    table = "file,start,end,label,part\nhigh/h0.wav,0,0.025,1,train\nhigh/h0.wav,0.025,0.05,1,test\n"
    (folder / "labels.csv").write_text(table)
    source = Audio(path=str(folder), labels=str(folder / "labels.csv"), outside=0, **SIZES)
    with pytest.raises(DataError, match=r"must be in one part(.|\n)*h0\.wav"):
        source(SplitConfig(test=None, column="part"))


def test_settings_that_contradict_each_other_are_rejected(parts):
    with pytest.raises(ConfigError, match=r"\[least, largest\](.|\n)*Write \[0, 10\]"):
        AugmentSound(noise=(10, 0))
    with pytest.raises(ConfigError, match=r"outside of segments have one label(.|\n)*0 for x, y"):
        Audio(path=str(parts), labels="labels.csv", label=("x", "y"), outside=0)
    with pytest.raises(ConfigError, match="Copies, drawn with seed, differ by"):
        AugmentSound()
    with pytest.raises(ConfigError, match=r"Only training files have copies(.|\n)*split\.column=folder"):
        load(DataConfig(Audio(path=str(parts / "train"), **SIZES, augment=AugmentSound(gain=(0, 1)))))


def test_a_file_is_rows_to_predict_and_the_model_says_how_its_sounds_were_prepared(parts):
    source = Audio(path=str(parts), **SIZES, hop=50)
    rows = Audio(path=str(parts / "test" / "b" / "4.wav"), **SIZES, hop=50)()
    assert rows.inputs["X"].shape == (7, 100)
    artifact = convert(None, ConvertConfig(MLP()), data=load(DataConfig(source, BY_FOLDER)))
    model = artifact.model
    recorded = {"name": "audio", "path": "", **SIZES, "labels": "no.csv", "outside": 0, "augment": {"gain": [0, 1]}}
    found = FoundModel("model", model, {}, artifact.facts.as_json())
    [(_, size)] = predictions(found, parts / "test" / "b" / "4.wav", recorded)
    assert size == 4
    prepared = {"source": "audio", "rate": RATE, "channels": 1, "samples": 100, "hop": 50, "scale": 1.0}
    assert read_metadata(model)["prepared"] == prepared


def test_the_digest_of_streamed_sounds_stays(parts):
    """An earlier release had this digest."""
    assert Audio(path=str(parts), **SIZES, stream=True)(BY_FOLDER).digest()[:16] == "ee4bbd0b961680fa"
