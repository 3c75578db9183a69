"""Quote names for Hydra's grammar and for a shell."""

import re
import shlex

WORDS = ("null", "true", "false", "nan", "inf")  # Hydra parses these as values


def quoted(text: str) -> str:
    r"""Return a string quoted by Hydra's grammar.

    >>> print(quoted("it's"), quoted("a\\"))
    'it\'s' 'a\\'
    """
    return "'" + re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + match[2].replace("'", r"\'"), text) + "'"


def word(text: str) -> str:
    r"""Return a string for Hydra's grammar, quoted only if it must be.

    >>> print(word("networks/mlp"), word("1"), word("it's"))
    networks/mlp '1' 'it\'s'
    """
    plain = re.fullmatch(r"[./]*[A-Za-z_][\w./-]*", text, re.ASCII) is not None and text.lower() not in WORDS
    return text if plain else quoted(text)


def listing(key: str, name: str) -> str:
    """Return the command-line argument that sets a key to a list of one name, quoted for a shell.

    >>> print(listing("columns", "age"), listing("columns", "größe"), listing("columns", "1"))
    columns=[age] "columns=['größe']" "columns=['1']"
    """
    argument = f"{key}=[{word(name)}]"
    if word(name) == name:
        return argument
    return shlex.quote(argument) if re.search(r'["$`\\!]', argument) else f'"{argument}"'
