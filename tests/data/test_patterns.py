"""Regular expressions that read texts of strangers take time that grows with the text alone."""

import ast
import importlib
import pkgutil
import re
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import dpt
from dpt.data.annotations import FORMATS, UNREAD

READERS = ("dpt.data", "dpt.weights", "dpt.predict", "dpt.exporting", "dpt.files", "dpt.html")
SIZES = (30, 1000, 65536)
SECONDS = 2.0  # linear ones take milliseconds
_CATEGORIES = {"DIGIT": "0", "SPACE": " ", "WORD": "a", "NOT_DIGIT": "a", "NOT_SPACE": "a"}
parser = re._parser


def patterns():
    """Yields the place, the pattern and the function of each call of ``re`` in the readers."""
    names = [info.name for info in pkgutil.walk_packages(dpt.__path__, "dpt.")]
    for name in filter(lambda name: name.startswith(READERS), names):
        module = importlib.import_module(name)
        for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
            is_call = isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.")
            if is_call and node.args and node.func.attr != "escape":
                with suppress(NameError):  # of local variables
                    arguments = node.args if node.func.attr == "compile" else node.args[:1]
                    values = [
                        eval(compile(ast.Expression(a), name, "eval"), vars(module))
                        for a in arguments
                    ]
                    yield f"{name}:{node.lineno}", re.compile(*values), node.func.attr
    for tool in FORMATS.values():
        for pattern in tool.patterns:
            yield tool.name, re.compile(pattern, re.MULTILINE), "search"
    for suffix, pattern, _ in UNREAD:
        yield suffix, re.compile(pattern, re.MULTILINE), "search"


def example(nodes, starts):
    """Returns a short text that matches, and notes where its unlimited repetitions begin."""
    text = ""
    for kind, value in nodes:
        name = str(kind)
        if name in ("LITERAL", "NOT_LITERAL", "ANY", "IN", "CATEGORY", "RANGE"):
            text += characters([(kind, value)])[0]
        elif name == "BRANCH":
            text += max((example(branch, []) for branch in value[1]), key=len)
        elif name in ("SUBPATTERN", "ATOMIC_GROUP"):
            inner = []
            below = example(value[-1] if name == "SUBPATTERN" else value, inner)
            starts += [(len(text) + place, some) for place, some in inner]
            text += below
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            inner = []
            below = example(value[2], inner)
            if value[1] == parser.MAXREPEAT:
                inner.append((0, characters(value[2])))
            starts += [(len(text) + place, some) for place, some in inner]
            text += below * max(1, value[0])
    return text


def characters(nodes):
    """Returns a character for each literal and class of a pattern, in their order."""
    found = []
    for kind, value in nodes:
        name = str(kind)
        if name in ("LITERAL", "RANGE"):
            found.append(chr(value if name == "LITERAL" else value[0]))
        elif name == "CATEGORY":
            found.append(_CATEGORIES.get(str(value).removeprefix("CATEGORY_"), "-"))
        elif name == "IN":
            is_negated = str(value[0][0]) == "NEGATE"
            found += ["b"] if is_negated else characters(value)
        elif name in ("ANY", "NOT_LITERAL"):
            found.append("b")
        elif name == "BRANCH":
            found += [character for branch in value[1] for character in characters(branch)]
        elif isinstance(value, tuple) and isinstance(value[-1], parser.SubPattern):
            found += characters(value[-1])
    return [*dict.fromkeys(found)]


def texts(pattern):
    """Yields (start, character): the character is repeated after the start."""
    nodes, starts = parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE), []
    whole = example(nodes, starts)
    yield from (("", character) for character in characters(nodes))
    yield from ((whole[:place], character) for place, some in starts for character in some)


def test_every_pattern_of_a_reader_takes_linear_time():
    count = 0
    for place, pattern, function in patterns():
        act = getattr(pattern, function if function in ("match", "fullmatch") else "search")
        for start, character in {*texts(pattern)}:
            for size in SIZES:
                text = f"{start}{character * size}\0"
                text = text.encode() if isinstance(pattern.pattern, bytes) else text
                began = time.process_time()
                act(text)
                seconds = time.process_time() - began
                assert seconds < SECONDS, (place, pattern.pattern, start, character, size)
        count += 1
    assert count > 60


@pytest.mark.parametrize("text", ["0" + 30 * " " + "cat", "0 " + "0." * 30])
def test_a_text_beside_an_image_is_recognised_at_once(text):
    began = time.process_time()
    for tool in FORMATS.values():
        for pattern in tool.patterns:
            re.search(pattern, text.encode(), re.MULTILINE)
    re.search(sys.modules["dpt.data.annotations.yolo"]._FIRST_LINE, text.encode(), re.MULTILINE)
    assert time.process_time() - began < SECONDS
