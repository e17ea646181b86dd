# SPDX-License-Identifier: Apache-2.0
"""Every setting is set by a test, a bench or an example, and a document says who needs it.

check_use.py SOURCE_DIR
"""
import pathlib
import re
import sys

ROW = re.compile(r"^(SETTING|SETTING_AS|VARIABLE)\((.*?)\b(CHOICE|TEXT|INTEGER|REAL|BYTES|POLICY|WIRE), "
                 r"(\w+),", re.MULTILINE | re.DOTALL)
MADE = re.compile(r"<!-- \w+: made by.*?<!-- end of \w+ -->", re.DOTALL)
SETS = ("test/**/*", "python_shim/tests/**/*", "bench/**/*", "examples/**/*", "scripts/*")
SAYS = ("README.md", "doc/*.md", "python_shim/README.md")


def settings(text):
    """(names in C, in files and of fields; the variable) of every row."""
    for kind, before, _, variable in ROW.findall(text):
        words = [word.strip() for word in before.split(",") if word.strip()]
        yield words if kind == "VARIABLE" else words[1:], f"MSDU_{variable}"


def read(root, patterns, is_wanted):
    for pattern in patterns:
        for path in root.glob(pattern):
            if path.is_file() and is_wanted(path):
                yield path.read_text(encoding="utf-8", errors="replace")


def sets(path):
    """Neither results nor the places of fields, which name every setting there is."""
    return path.suffix in (".c", ".h", ".py", ".cmake", ".sh", ".ini") and path.name != "test_abi.c"


def main(root):
    sources = "\n".join(read(root, SETS, sets))
    documents = "\n".join(read(root, SAYS, lambda path: path.name != "settings.md"))
    documents = MADE.sub("", documents)
    faults = []
    found = list(settings((root / "src/config/settings.inc").read_text(encoding="utf-8")))
    for names, variable in found:
        either = "|".join(names)
        name = rf"(?:(?<!\w)|\\n)(?:{either})"  # behind a line's end in a string, too
        if not re.search(rf"\b{variable}\b|{name}['\"]?\s*=(?!=)|['\"](?:{either})['\"]", sources):
            faults.append(f"{names[0]}: no test, bench or example sets it")
        if not re.search(rf"\b{variable}\b|`{names[0]}\b", documents):
            faults.append(f"{names[0]}: no document says who needs it (doc/using.md)")
    print("\n".join(faults) or f"{len(found)} settings are used and spoken of")
    return 1 if faults or len(found) < 60 else 0


sys.exit(main(pathlib.Path(sys.argv[1])))
