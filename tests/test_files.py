import errno
import os
from types import SimpleNamespace

import pytest

from ortpipe import files
from ortpipe.files import atomic_folder, atomic_write


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("content", "expected"), [("é\n", "é\n".encode()), (b"\x00\xff", b"\x00\xff"), ("", b"")])
def test_a_file_holds_what_was_given_and_nothing_is_left_beside_it(tmp_path, content, expected):
    path = atomic_write(tmp_path / "new" / "deep" / "file.txt", content)
    assert path.read_bytes() == expected
    assert names(path.parent) == ["file.txt"]


def test_a_file_is_replaced(tmp_path):
    atomic_write(tmp_path / "file", "old and longer")
    atomic_write(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"


@pytest.fixture(params=[0o002, 0o022, 0o077], ids=oct)
def umask(request):
    """Set another umask; return it."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_what_is_written_has_the_rights_that_the_umask_leaves(tmp_path, umask):
    atomic_write(tmp_path / "new" / "file", "x")
    with atomic_folder(tmp_path / "folder") as folder:
        (folder / "part").write_text("x")
    rights = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    folders = {name: mode for name, mode in rights.items() if (tmp_path / name).is_dir()}
    assert folders == dict.fromkeys(("new", "folder"), 0o777 & ~umask)
    assert [rights[name] for name in ("new/file", "folder/part")] == [0o666 & ~umask] * 2


def test_a_new_folder_belongs_to_the_group_of_a_folder_that_says_so(tmp_path):
    tmp_path.chmod(0o2775)
    with atomic_folder(tmp_path / "folder"):
        pass
    assert (tmp_path / "folder").stat().st_mode & 0o2000


def test_where_folders_cannot_be_opened_they_are_not_synced(tmp_path, monkeypatch):
    """Windows opens no folder, and flushes no file that is open for reading alone."""
    opened, real = [], os.open

    def as_windows(path, flags, *mode):
        if os.path.isdir(path) or not flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        opened.append(os.path.basename(path))
        return real(path, flags, *mode)

    monkeypatch.setattr(files, "os", SimpleNamespace(**{**vars(os), "open": as_windows, "name": "nt"}))
    atomic_write(tmp_path / "file", "x")
    with atomic_folder(tmp_path / "folder") as folder:
        (folder / "part").write_text("x")
    assert [name for name in opened if not files.TEMPORARY.fullmatch(name)] == ["part"]
    assert names(tmp_path) == ["file", "folder"]


def test_content_that_cannot_be_written_leaves_the_old_file_and_no_other(tmp_path):
    atomic_write(tmp_path / "file", "old")
    with pytest.raises(TypeError):
        atomic_write(tmp_path / "file", 3)
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_a_file_does_not_replace_a_folder(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="file"):
        atomic_write(tmp_path / "file", "x")
    assert names(tmp_path) == ["file"]


def test_a_folder_appears_when_its_block_ends_and_not_before(tmp_path):
    target = tmp_path / "new" / "folder"
    with atomic_folder(target) as temporary:
        (temporary / "a").write_text("1")
        (temporary / "sub").mkdir()
        (temporary / "sub" / "b").write_text("2")
        assert not target.exists()
    assert names(target.parent) == ["folder"]
    assert (target / "sub" / "b").read_text() == "2"


def test_a_folder_replaces_an_older_one_whole(tmp_path):
    target = tmp_path / "folder"
    for name in ("old", "new"):
        with atomic_folder(target) as temporary:
            (temporary / name).write_text("x")
    assert names(tmp_path) == ["folder"]
    assert names(target) == ["new"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_block_that_fails_leaves_the_old_folder_and_no_other(tmp_path, error):
    target = tmp_path / "folder"
    with atomic_folder(target) as temporary:
        (temporary / "old").write_text("x")

    def fail():
        with atomic_folder(target) as temporary:
            (temporary / "half").write_text("x")
            raise error

    with pytest.raises(error):
        fail()
    assert names(tmp_path) == ["folder"]
    assert names(target) == ["old"]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="which file a handle is of")
def test_each_file_of_a_new_folder_is_synced_before_it_takes_its_place_but_what_was_on_the_disk(tmp_path, monkeypatch):
    done, real = [], os.fsync

    def note(handle):
        done.append(os.path.basename(os.readlink(f"/proc/self/fd/{handle}")))
        real(handle)

    atomic_write(tmp_path / "kept", "x")
    monkeypatch.setattr(os, "fsync", note)
    with atomic_folder(tmp_path / "folder") as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "own").write_text("x")
        os.link(tmp_path / "kept", folder / "linked")
        assert done == []
    partial = folder.name
    assert sorted(done[:3]) == sorted(["own", "deep", partial])
    assert done[3:] == [tmp_path.name]


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "file"])
def test_a_folder_replaces_whatever_has_its_name(tmp_path, kind):
    target, outside = tmp_path / "figures", tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    if kind == "pipe":
        os.mkfifo(target)
    elif kind == "file":
        target.write_text("older")
    else:
        target.symlink_to(outside if kind == "link" else tmp_path / "nothing")
    with atomic_folder(target) as folder:
        (folder / "new").write_text("new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figures", "outside"]
    assert not target.is_symlink()
    assert (target / "new").read_text() == "new"
    assert (outside / "kept").read_text() == "kept"
