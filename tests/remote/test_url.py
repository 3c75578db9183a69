import sys

import pytest

from ortpipe.errors import ConfigError
from ortpipe.remote import check_url


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://key:secret@bucket/a", "without credentials"),
        ("s3://bucket/a?sig=secret", "without credentials"),
        ("s3://bucket/a#secret", "without credentials"),
        ("nothing://bucket/a", "must be one that fsspec knows"),
    ],
)
def test_a_wrong_url_is_rejected_without_its_secrets(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        check_url(url, "paths.cache")
    assert raised.value.key == "paths.cache"
    assert "secret" not in str(raised.value)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    check_url("memory://a/b", "paths.cache")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigError, match=r"pip install 'ortpipe\[s3\]'"):
        check_url("s3://bucket/a", "paths.cache")
