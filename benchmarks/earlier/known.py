"""The tests and examples that do not pass, each with what they raise: on purpose, or for want of what is gone.

Keys are `library/file/test`; a value is what README's table calls the difference, or what is gone, and a pattern of the
exception's text. A test that fails in another way, or passes, is reported.
"""

Known = dict[str, tuple[str, str]]

DELIBERATE: Known = {}
GONE: Known = {}
