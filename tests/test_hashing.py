import hashlib

import ml_dtypes
import numpy as np
import pytest

from ortpipe.hashing import Hasher, digest_of

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)
DIFFERENT = {
    "a text": ("ab", "c"),
    "the same letters cut elsewhere": ("a", "bc"),
    "one text": ("abc",),
    "bytes": (b"abc",),
    "a number": (1,),
    "a float": (1.0,),
    "a text of a number": ("1",),
    "true": (True,),
    "nothing": (),
    "none": (None,),
    "a list": (["a", "b"],),
    "its items": ("a", "b"),
    "a mapping": ({"a": 1, "b": 2},),
    "a mapping in another order": ({"b": 2, "a": 1},),
    "an array": (ARRAY,),
    "an array of another shape": (ARRAY.reshape(3, 2),),
    "an array of another type": (ARRAY.view(np.int32),),
    "bfloat16": (np.ones(2, ml_dtypes.bfloat16),),
    "float16 of the same bytes": (np.ones(2, ml_dtypes.bfloat16).view(np.float16),),
    "an array of text": (np.array(["a", "b"]),),
    "no rows": (np.empty((0, 3), np.float32),),
    "no columns": (np.empty((3, 0), np.float32),),
    "a scalar": (np.array(1, np.float32),),
}


def test_different_content_has_different_digests():
    digests: dict[str, list[str]] = {}
    for name, parts in DIFFERENT.items():
        digests.setdefault(digest_of("tag", *parts), []).append(name)
    assert [names for names in digests.values() if len(names) > 1] == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ARRAY, np.asfortranarray(ARRAY)),
        (ARRAY, ARRAY.astype(">f4")),
        (ARRAY, np.repeat(ARRAY, 2, axis=0)[::2]),
        (np.array(["a", "b"]), np.array(["a", "b"], object)),
        (np.array(["a", "b"]), np.array([b"a", b"b"], object)),
    ],
)
def test_how_an_array_lies_in_memory_does_not_count(one, other):
    assert digest_of("tag", one) == digest_of("tag", other)


def test_a_tag_tells_uses_of_the_same_content_apart():
    assert digest_of("rows", "a") != digest_of("key", "a")


def test_parts_may_come_one_by_one_and_the_digest_is_a_sha256():
    sha = Hasher("tag")
    for part in ("a", ARRAY):
        sha.add(part)
    assert sha.hexdigest() == digest_of("tag", "a", ARRAY)
    assert len(sha.hexdigest()) == len(hashlib.sha256().hexdigest())


def test_the_bytes_that_are_hashed_never_change_by_accident():
    told = digest_of("golden", "é", b"\x00", ARRAY, {"a": [1, 2.5, None, True]}, np.array(["x"]))
    assert told == "cd7b8c2fc1d1e3fa9ce45988b649f43b9c059de55ddf645d6d265821673db87f"
