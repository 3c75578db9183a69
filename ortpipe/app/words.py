"""The words by which the command line's errors name settings: their keys (see `ortpipe.errors.words`)."""

SETTINGS = {
    "": "",  # every setting by its full key
    "cut": "convert.source.prediction",
    "sizes": "convert.source.shape",
    "untie": "convert.tie=false",
    "tie": "convert.tie=null",
    "freeze": "derive.frozen=",
}
