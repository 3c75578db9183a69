"""The URL of a shared store: checked before a run, without a connection."""

from urllib.parse import urlsplit

from ortpipe.errors import ConfigError


def check_url(url: str, key: str) -> None:
    """Reject a URL with credentials, and one whose scheme fsspec does not know or whose package is missing."""
    parts = urlsplit(url)
    if parts.password is not None or parts.query or parts.fragment:
        fix = "Write s3://bucket/prefix, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment."
        shown = f"{parts.scheme}://{'…@' if '@' in parts.netloc else ''}{parts.netloc.rpartition('@')[2]}{parts.path}"
        raise ConfigError("{key} must be a URL without credentials and options.", key=key, got=shown, fix=fix)
    try:
        import fsspec

        fsspec.get_filesystem_class(parts.scheme)
    except ImportError as error:
        fix = "pip install 'ortpipe[s3]' for s3://; for another scheme, install the package of fsspec that reads it."
        raise ConfigError(
            "The package that reads {key} must be installed.", key=key, got=f"{url}: {error}", fix=fix
        ) from error
    except ValueError as error:
        fix = "Write s3://bucket/prefix, or a path of this machine."
        raise ConfigError("The scheme of {key} must be one that fsspec knows.", key=key, got=url, fix=fix) from error
