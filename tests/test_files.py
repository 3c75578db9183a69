import pytest

from ortpipe.files import whole_file, whole_folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("content", "expected"), [("é\n", "é\n".encode()), (b"\x00\xff", b"\x00\xff"), ("", b"")])
def test_a_file_holds_what_was_given_and_nothing_is_left_beside_it(tmp_path, content, expected):
    path = whole_file(tmp_path / "new" / "deep" / "file.txt", content)
    assert path.read_bytes() == expected
    assert names(path.parent) == ["file.txt"]


def test_a_file_is_replaced(tmp_path):
    whole_file(tmp_path / "file", "old and longer")
    whole_file(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"


def test_others_may_read_what_was_written(tmp_path):
    assert whole_file(tmp_path / "file", "x").stat().st_mode & 0o777 == 0o644
    with whole_folder(tmp_path / "folder"):
        pass
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o755


def test_content_that_cannot_be_written_leaves_the_old_file_and_no_other(tmp_path):
    whole_file(tmp_path / "file", "old")
    with pytest.raises(TypeError):
        whole_file(tmp_path / "file", 3)
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_a_file_does_not_replace_a_folder(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="file"):
        whole_file(tmp_path / "file", "x")
    assert names(tmp_path) == ["file"]


def test_a_folder_appears_when_its_block_ends_and_not_before(tmp_path):
    target = tmp_path / "new" / "folder"
    with whole_folder(target) as temporary:
        (temporary / "a").write_text("1")
        (temporary / "sub").mkdir()
        (temporary / "sub" / "b").write_text("2")
        assert not target.exists()
    assert names(target.parent) == ["folder"]
    assert (target / "sub" / "b").read_text() == "2"


def test_a_folder_replaces_an_older_one_whole(tmp_path):
    target = tmp_path / "folder"
    for name in ("old", "new"):
        with whole_folder(target) as temporary:
            (temporary / name).write_text("x")
    assert names(tmp_path) == ["folder"]
    assert names(target) == ["new"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_block_that_fails_leaves_the_old_folder_and_no_other(tmp_path, error):
    target = tmp_path / "folder"
    with whole_folder(target) as temporary:
        (temporary / "old").write_text("x")

    def fail():
        with whole_folder(target) as temporary:
            (temporary / "half").write_text("x")
            raise error

    with pytest.raises(error):
        fail()
    assert names(tmp_path) == ["folder"]
    assert names(target) == ["old"]
