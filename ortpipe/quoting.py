"""Quote names for Hydra's grammar and for a shell."""

import re
import shlex


def quoted(text: str) -> str:
    r"""Return a string quoted by Hydra's grammar.

    >>> print(quoted("it's"), quoted("a\\"))
    'it\'s' 'a\\'
    """
    return "'" + re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + match[2].replace("'", r"\'"), text) + "'"


def listing(key: str, name: str) -> str:
    """Return the command-line argument that sets a key to a list of one name, quoted for a shell.

    >>> print(listing("columns", "age"), listing("columns", "größe"), listing("columns", "1"))
    columns=[age] "columns=['größe']" "columns=['1']"
    """
    words = ("null", "true", "false", "nan", "inf")  # Hydra parses these as values
    if re.fullmatch(r"[A-Za-z_][\w.-]*", name, re.ASCII) and name.lower() not in words:
        return f"{key}=[{name}]"
    argument = f"{key}=[{quoted(name)}]"
    return shlex.quote(argument) if re.search(r'["$`\\!]', argument) else f'"{argument}"'
