"""Folders of pictures: pixels, labels, parts, copies, streams, and files that are rejected."""

import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from ortpipe.app.lookup import FoundModel
from ortpipe.app.prediction import predictions
from ortpipe.data.load import DataConfig, load
from ortpipe.data.parts import SplitConfig
from ortpipe.data.sources.images import Augment, Images
from ortpipe.errors import ConfigError, DataError
from ortpipe.facts_json import read_metadata
from ortpipe.stages.convert.config import ConvertConfig
from ortpipe.stages.convert.sources.networks.mlp import MLP
from ortpipe.stages.convert.stage import convert


def picture(path, size=(12, 8), mode="RGB", **how):
    """Write a picture whose pixels follow from its name, and return them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(list(path.name.encode()))
    pixels = random.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path, **how)
    return pixels


@pytest.fixture
def folder(tmp_path):
    """Twelve pictures of two classes, in lossless formats, one of them in a folder further below."""
    for number in range(6):
        picture(tmp_path / "cat" / f"c{number}.png")
        picture(tmp_path / "dog" / "more" / f"d{number}.bmp")
    return tmp_path


def test_rows_are_the_pixels_of_all_pictures_in_an_order_that_mixes_the_classes(folder):
    rows, again = (Images(path=str(folder))() for _ in range(2))
    assert rows.inputs["X"].shape == (12, 3, 8, 12)
    assert rows.inputs["X"].dtype == np.float32
    files = [*folder.rglob("*.png"), *folder.rglob("*.bmp")]
    expected = {(np.asarray(Image.open(file)).transpose(2, 0, 1) / np.float32(255)).tobytes() for file in files}
    assert {row.tobytes() for row in rows.inputs["X"]} == expected
    labels = rows.label.tolist()
    assert sorted(labels) == ["cat"] * 6 + ["dog"] * 6 != labels
    assert rows.digest() == again.digest()


def test_a_row_is_scaled_centred_and_laid_out_by_the_settings(tmp_path):
    pixels = picture(tmp_path / "a" / "1.png").astype(np.float32)
    picture(tmp_path / "b" / "2.png")
    settings = {"color": "bgr", "layout": "channels_last", "scale": 2.0, "mean": (1, 2, 3), "std": (4, 5, 6)}
    rows = Images(path=str(tmp_path), **settings)()
    expected = (pixels[..., ::-1] / 2 - np.array([1, 2, 3])) / np.array([4, 5, 6])
    np.testing.assert_allclose(rows.inputs["X"][rows.label == "a"][0], expected, rtol=1e-6)
    grey = Images(path=str(tmp_path), color="grey", dtype="uint8")()
    assert grey.inputs["X"].shape == (2, 1, 8, 12)
    luma = pixels @ [0.299, 0.587, 0.114]  # ITU-R 601-2, as Pillow's documentation of Image.convert has it
    np.testing.assert_allclose(grey.inputs["X"][grey.label == "a"][0, 0], luma, atol=1)


def test_the_shorter_side_is_resized_and_the_middle_is_cut_out(tmp_path):
    ramp = np.tile(np.arange(40, dtype=np.uint8)[:, None] * 4, (1, 20))
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.fromarray(ramp).save(tmp_path / name / "1.png")
    rows = Images(path=str(tmp_path), resize=10, crop=(4, 10), color="grey", scale=1)()
    column = rows.inputs["X"][0, 0, :, 0]  # of 40 rows, 20 are left, of which the middle four are 8 to 11
    np.testing.assert_allclose(column, np.arange(8, 12) * 8 + 2, atol=1)


def test_a_picture_is_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    pixels = picture(tmp_path / "a" / "1.png", exif=exif)
    picture(tmp_path / "b" / "2.png", size=(8, 12))
    rows = Images(path=str(tmp_path), layout="channels_last", dtype="uint8")()
    np.testing.assert_array_equal(rows.inputs["X"][rows.label == "a"][0], np.rot90(pixels, -1))


def test_labels_and_parts_of_a_table(folder):
    table = "file,kind,x,y,part\ncat/c0.png,007,1,0.5,train\ncat/c1.png,2,2,1,train\ndog/more/d0.bmp,1,3,2,test\n"
    (folder / "labels.csv").write_text(table)
    source = {"path": str(folder), "labels": str(folder / "labels.csv")}
    rows = Images(**source, label="kind")(SplitConfig(column="part"))
    assert sorted(rows.label.tolist()) == ["007", "1", "2"]
    assert rows.part[rows.label == "1"].tolist() == [2]
    assert sorted(Images(**source, label="x")().label.tolist()) == [1, 2, 3]
    assert sorted(Images(**source, label=("x", "y"))().label.tolist()) == [[1, 0.5], [2, 1], [3, 2]]


def test_folders_may_be_parts(tmp_path):
    for name in ("train/a/1.png", "train/b/2.png", "validation/a/3.png", "test/b/4.png"):
        picture(tmp_path / name)
    data = load(DataConfig(Images(path=str(tmp_path)), SplitConfig(column="folder")))
    assert (len(data.train), len(data.validation), len(data.test)) == (2, 1, 1)
    others = SplitConfig(test=str(tmp_path / "test"), validation=None)
    with pytest.raises(DataError, match=r"A folder train is a part(.|\n)*split\.column=folder"):
        Images(path=str(tmp_path))(others)
    assert Images(path=str(tmp_path / "train"))(others).part.tolist().count(2) == 1


def test_streamed_rows_are_those_in_memory(folder, monkeypatch):
    monkeypatch.setattr("ortpipe.data.picture_reader.PIECE", 4000)
    streamed, kept = (
        load(DataConfig(Images(path=str(folder), stream=stream), SplitConfig(0.25, seed=3))) for stream in (True, False)
    )
    assert streamed.train.on_disk
    for part in ("train", "test"):
        rows = [np.concatenate([piece.inputs["X"] for piece in getattr(of, part).read()]) for of in (streamed, kept)]
        np.testing.assert_array_equal(*rows)
    Image.new("RGB", (3, 3)).save(folder / "cat" / "c0.png")
    with pytest.raises(DataError, match=r"must not change(.|\n)*c0\.png: 3 × 3 pixels, but \S+png has 12 × 8"):
        list(streamed.train.read())


def test_only_training_rows_are_copied_mirrored_and_moved_by_the_seed(folder):
    plain, data, again, other = (
        load(DataConfig(Images(path=str(folder), augment=augment), SplitConfig(0.25)))
        for augment in (None, *(Augment(3, flip=True, shift=2, seed=seed) for seed in (0, 0, 1)))
    )
    assert data.digest() == again.digest() != other.digest()
    assert data.test.digest() == plain.test.digest()
    x, rows = plain.train.inputs["X"], data.train.inputs["X"]
    assert len(rows) == 4 * len(x)
    np.testing.assert_array_equal(rows[: len(x)], x)
    np.testing.assert_array_equal(data.train.label, np.tile(plain.train.label, 4))
    padded = np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="edge")
    choices = [
        crop
        for top in range(5)
        for left in range(5)
        for crop in [padded[..., top : top + 8, left : left + 12]]
        for crop in (crop, crop[..., ::-1])
    ]
    found = [
        [n for n, choice in enumerate(choices) if np.array_equal(choice[k % len(x)], row)] for k, row in enumerate(rows)
    ]
    assert all(found)
    assert len({n for [n, *_] in found[len(x) :]}) > 15


def test_copies_are_bounded_and_in_memory(folder, monkeypatch):
    with pytest.raises(DataError, match=r"at most 256 MiB(.|\n)*of rows that are streamed"):
        load(DataConfig(Images(path=str(folder), augment=Augment(flip=True), stream=True)))
    with pytest.raises(DataError, match=r"at most 256 MiB(.|\n)*fix: Lower source\.augment\.copies") as error:
        load(DataConfig(Images(path=str(folder), augment=Augment(copies=10**6, flip=True))))
    assert error.value.key.endswith("augment.copies")


def bomb(path):
    """A PNG file that promises a picture of 10 billion pixels."""
    head = b"IHDR" + struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(bytes(10**6))
    chunks = (struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (head, data, b"IEND"))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


def cut_short(path):
    picture(path, (50, 50))
    path.write_bytes(path.read_bytes()[:2000])


BROKEN = {
    "a bomb": (bomb, "exceeds limit of"),
    "large": (lambda p: Image.new("1", (10_000, 7_000)).save(p), "more than 67,108,864 pixels"),
    "cut short": (cut_short, "truncated"),
    "empty": (lambda p: p.write_bytes(b""), "no picture in one of the formats"),
    "PostScript": (
        lambda p: p.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 12 8\n"),
        "no picture in one of the formats",
    ),
    "16 bits": (lambda p: Image.fromarray(np.full((8, 12), 300, np.uint16)).save(p), "more than 8 bits per channel"),
    "another size": (lambda p: picture(p, (13, 8)), "13 × 8 pixels, but "),
}


def test_all_pictures_that_cannot_be_read_are_listed_by_file_name(folder):
    for name, (write, _) in BROKEN.items():
        write(folder / "cat" / f"{name}.png")
    with pytest.raises(DataError) as error:
        Images(path=str(folder))()
    for name, (_, words) in BROKEN.items():
        lines = [part for part in str(error.value).split("; ") if f"{name}.png: " in part]
        assert len(lines) == 1
        assert words in lines[0]


def test_the_first_picture_is_named_if_the_others_have_another_size(folder):
    first = Images(path=str(folder)).files(None)[0].path
    picture(first, (13, 8))
    with pytest.raises(DataError, match=rf"png: 12 × 8 pixels, but {first} has 13 × 8 pixels"):
        Images(path=str(folder))()


def test_a_picture_that_is_too_large_after_resizing_is_rejected(folder):
    Image.new("L", (1, 20_000)).save(folder / "cat" / "thin.png")
    with pytest.raises(DataError, match=r"thin\.png: 4,000 × 80,000,000 pixels after resize, more than 67,108,864"):
        Images(path=str(folder), resize=4000, crop=1)()


def one_class(path):
    picture(path / "cat" / "1.png")


def loose(path):
    one_class(path)
    picture(path / "dog.png")


def linked(path):
    picture(path.parent / "elsewhere" / "1.png")
    os.symlink(path.parent / "elsewhere", path / "cat")


FOLDERS = {
    "an empty folder": (lambda p: None, {}, "must hold files that end in"),
    "one class": (one_class, {}, "must hold a folder for each class(.|\n)*only 'cat'"),
    "a picture without a class": (loose, {}, "in a folder named after its class(.|\n)*dog.png"),
    "links": (linked, {}, "links are not followed"),
    "a crop that is too large": (one_class, {"crop": 9}, "12 × 8 pixels, smaller than the crop of 9 × 9"),
    "no folder": (lambda p: p.rmdir(), {}, "must be a folder"),
    "a table that is missing": (one_class, {"labels": "no.csv"}, "must be a CSV file(.|\n)*no.csv"),
}


@pytest.mark.parametrize(("make", "settings", "words"), FOLDERS.values(), ids=FOLDERS)
def test_a_wrong_folder_is_rejected(tmp_path, make, settings, words):
    (tmp_path / "rows").mkdir()
    make(tmp_path / "rows")
    if "crop" in settings:
        picture(tmp_path / "rows" / "dog" / "2.png")
    with pytest.raises(DataError, match=words):
        Images(path=str(tmp_path / "rows"), **settings)()


def test_one_picture_is_a_row_to_predict(folder):
    rows = Images(path=str(folder / "cat" / "c0.png"), labels="labels.csv")()
    assert rows.inputs["X"].shape == (1, 3, 8, 12)


def test_a_model_of_copies_and_a_table_of_labels_predicts_a_file_without_them(folder):
    (folder / "labels.csv").write_text("file,label\ncat/c0.png,1\ndog/more/d0.bmp,2\n")
    settings = {"labels": str(folder / "labels.csv"), "augment": {"copies": 1, "flip": True}}
    source = Images(path=str(folder), labels=settings["labels"], augment=Augment(1, flip=True))
    artifact = convert(None, ConvertConfig(MLP()), data=load(DataConfig(source, SplitConfig(test=None))))
    found = FoundModel("model", artifact.model, {}, artifact.facts.as_json())
    (folder / "labels.csv").unlink()
    recorded = {"name": "images", "path": str(folder), "label": "label", **settings}
    [(columns, size)] = predictions(found, folder / "cat" / "c1.png", recorded)
    assert size == 1
    assert columns["prediction"][0] in (1, 2)


def test_hidden_files_and_folders_are_skipped(folder):
    for name in (".thumbs/1.png", "cat/.thumbs/2.png", "cat/._3.png"):
        picture(folder / name)
    rows = Images(path=str(folder))()
    assert sorted(rows.label.tolist()) == ["cat"] * 6 + ["dog"] * 6


@pytest.mark.parametrize("names", [("1.5", "2"), ("1", "nan"), ("1e3", "2"), ("1", "+1"), ("1", "9" * 20), ("1", "2")])
def test_names_of_folders_are_classes(tmp_path, names):
    for name in names:
        picture(tmp_path / name / "1.png")
    labels = Images(path=str(tmp_path))().label
    assert sorted(labels.tolist()) == ([1, 2] if names == ("1", "2") else sorted(names))


def test_labels_of_a_table_lose_outer_spaces_and_fit_in_64_bits(folder):
    source = Images(path=str(folder), labels=str(folder / "labels.csv"))
    (folder / "labels.csv").write_text("file,label\ncat/c0.png,cat \ncat/c1.png,cat\ncat/c2.png, dog\n")
    assert sorted(source().label.tolist()) == ["cat", "cat", "dog"]
    (folder / "labels.csv").write_text("file,label\ncat/c0.png, \n")
    with pytest.raises(DataError, match="no label in line 2"):
        source()
    (folder / "labels.csv").write_text(f"file,label\ncat/c0.png,1\ncat/c1.png,{10**20}\n")
    with pytest.raises(DataError, match=r"must fit in 64 bits(.|\n)*100000000000000000000"):
        source()


def test_wrong_rows_of_a_table_are_listed_by_line(folder):
    (folder / "labels.csv").write_text("file,label\ncat/c0.png,1\ncat/c0.png,1\ncat/no.png,2\ncat/c1.png,\n")
    with pytest.raises(DataError, match=r"c0.png' again in line 3, 'cat/no.png', which is no(.|\n)*no label in line 5"):
        Images(path=str(folder), labels=str(folder / "labels.csv"))()
    with pytest.raises(DataError, match=r"no 'lable' in(.|\n)*Did you mean 'label'"):
        Images(path=str(folder), labels=str(folder / "labels.csv"), label="lable")()


def test_settings_that_contradict_each_other_are_rejected(folder):
    with pytest.raises(ConfigError, match="Copies, drawn with seed, differ by flip or shift"):
        Augment(copies=2)
    with pytest.raises(ConfigError, match="one number, or one for each of 3 channels"):
        Images(path=str(folder), mean=(1, 2))
    with pytest.raises(ConfigError, match="uint8 pixels are not normalized"):
        Images(path=str(folder), std=(1,), dtype="uint8")
    with pytest.raises(DataError, match=r"With labels, a column names the parts(.|\n)*split.column=part"):
        Images(path=str(folder), labels="labels.csv")(SplitConfig(test=str(folder)))
    with pytest.raises(DataError, match=r"split\.column can only be folder"):
        Images(path=str(folder))(SplitConfig(column="part"))


def test_the_model_says_how_its_pictures_were_prepared(folder):
    data = load(DataConfig(Images(path=str(folder), resize=(4, 4), mean=(0.5,)), SplitConfig(stratify=None)))
    model = convert(None, ConvertConfig(MLP()), data=data).model
    prepared = {"source": "images", "resize": [4, 4], "filter": "bilinear", "color": "rgb", "dtype": "float32"}
    prepared |= {"layout": "channels_first", "scale": 255.0, "mean": [0.5]}
    assert read_metadata(model)["prepared"] == prepared


def test_the_digest_of_streamed_pictures_stays(tmp_path):
    """An earlier release had these digests."""
    for name in ("train/a/1", "train/b/2", "validation/a/3", "test/b/4"):
        picture(tmp_path / "parts" / f"{name}.png")
    for name in ("a/a1", "a/a2", "a/a3", "b/b1", "b/b2", "b/b3"):
        picture(tmp_path / "classes" / f"{name}.png")
    parts = Images(path=str(tmp_path / "parts"), stream=True)(SplitConfig(test=None, column="folder"))
    classes = Images(path=str(tmp_path / "classes"), stream=True)(SplitConfig(test=0.5))
    assert [rows.digest()[:16] for rows in (parts, classes)] == ["24664a1226c82493", "e3b36a209c9500a6"]
