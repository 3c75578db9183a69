import os
import re
import time

import pytest

import ortpipe
from ortpipe.errors import ConfigError

SMALL = ("experiment=linear_regression", "train.epochs=1")


@pytest.fixture
def cache(tmp_path):
    from command import ortpipe

    return lambda *arguments: ortpipe("cache", *arguments, cwd=tmp_path)


def entries(said):
    return re.findall(r"^(\w+) +([0-9a-f]{12}) ", said.stdout, re.MULTILINE)


def test_an_empty_store_holds_nothing(cache, tmp_path):
    assert cache("ls").stdout.splitlines()[1:] == [f"0 entries, 0 artifacts, 0 Bytes in {tmp_path}/outputs/cache"]
    assert cache("verify").stdout == "0 entries are intact, 0 were damaged\n"
    assert cache("gc", "--keep", "1d").stdout == "0 entries removed, 0 Bytes freed\n"
    assert list(tmp_path.iterdir()) == []


def test_what_is_stored_is_listed_and_removed_by_name(cli, cache, only_run):
    assert cli(*SMALL).returncode == 0
    said = cache("ls")
    assert len(entries(said)) == 6
    assert said.stdout.count(str(only_run())) == 6
    train = dict(entries(said))["train"]
    assert entries(cache("rm", train, "--dry-run")) == [("train", train)]
    assert entries(cache("rm", train, "evaluate"))[0] == ("train", train)
    assert sorted(dict(entries(cache("ls")))) == ["add_loss", "convert", "derive", "penalty"]
    assert cli(*SMALL).stderr.count("  cached: ") == 4
    refused = cache("rm", "nothing")
    assert (refused.returncode, "nothing" in refused.stderr) == (1, True)


def test_what_was_not_of_use_for_long_or_is_too_much_goes(cli, cache, tmp_path):
    assert cli(*SMALL).returncode == 0
    store = tmp_path / "outputs" / "cache"
    [old] = (store / "entries" / "train").iterdir()
    os.utime(old, (time.time() - 5000,) * 2)
    left = store / "artifacts" / "ab" / ".abc.killed"
    left.mkdir(parents=True)
    assert entries(cache("gc", "--keep", "1h", "--dry-run")) == [("train", old.stem[:12])]
    assert entries(cache("gc", "--keep", "1h", "--keep", "1GB")) == [("train", old.stem[:12])]
    assert not left.exists()
    assert len(entries(cache("ls"))) == 5
    said = cache("gc", "--keep", "0B")
    assert len(entries(said)) == 5
    assert not list(store.glob("artifacts/*/*"))
    for wrong in ("soon", "3 apples"):
        refused = cache("gc", "--keep", wrong)
        assert (refused.returncode, "Write 30d, 12h" in refused.stderr) == (1, True)
    assert "must know what to keep" in cache("gc").stderr


def test_damage_is_found_and_set_aside(cli, cache, tmp_path):
    assert cli(*SMALL).returncode == 0
    assert cache("verify").stdout == "6 entries are intact, 0 were damaged\n"
    file = next((tmp_path / "outputs" / "cache" / "artifacts").glob("*/*/tensors.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    said = cache("verify")
    assert said.returncode == 1
    assert "set aside" in said.stderr
    assert "1 damaged, set aside in" in cache("ls").stdout
    assert cache("verify").returncode == 0


def test_a_run_without_a_store_stores_nothing(cli, cache, tmp_path):
    assert cli(*SMALL, "paths.cache=null").returncode == 0
    assert not (tmp_path / "outputs" / "cache").exists()
    assert "Set paths.cache=FOLDER" in cache("ls", "paths.cache=null").stderr


def test_a_shared_store_is_cleaned_in_the_bucket_and_in_its_folder(call, tmp_path, capsys):
    url = f"paths.cache={(tmp_path / 'bucket').as_uri()}"
    ortpipe.run(*SMALL, url, "recorder=none", "figures=false")
    listing = call("cache", "ls", url)
    assert listing.count("train  ") == 2
    assert re.findall(r"(\d) entries, .* in (\S+)", listing) == [("6", url[12:]), ("6", f"{tmp_path}/outputs/cache")]
    assert call("cache", "verify", url) == "6 entries are intact, 0 were damaged\n" * 2
    train = re.findall(r"^train +(\w+)", listing, re.M)[0]
    assert call("cache", "rm", train, "evaluate", url).count("2 entries removed") == 2
    [damaged] = (tmp_path / "bucket" / "entries" / "derive").iterdir()
    damaged.write_text("{}")
    with pytest.raises(SystemExit):
        call("cache", "verify", url)
    assert "3 entries are intact, 1 were damaged" in capsys.readouterr().out
    assert not damaged.exists()
    assert call("cache", "gc", "--keep", "0B", url).splitlines()[3].startswith("3 entries removed")
    assert [file for file in (tmp_path / "bucket" / "entries").rglob("*") if file.is_file()] == []
    with pytest.raises(ConfigError, match="without credentials"):
        call("cache", "ls", "paths.cache=s3://me:secret@bucket/a")
