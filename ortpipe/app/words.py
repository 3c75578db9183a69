"""The words by which the command line's errors name settings: their keys (see `ortpipe.errors.words`)."""

SETTINGS = {
    "": "",  # every setting by its full key
    "cut": "convert.source.prediction",
    "sizes": "convert.source.shape",
    "untie": "convert.untie=true",
    "tie": "convert.untie=false",
    "freeze": "derive.frozen=",
}
