# SPDX-License-Identifier: Apache-2.0
"""Puts what src/config/settings.inc says, or `msdu info --json`, into the files that show it.

settings_table.py settings.inc HEADER   rewrites the struct of include/msdu/config.h
settings_table.py MSDU DOCUMENT         rewrites the part between the two markers of each table
--check                                 only says whether the file would change (exit 1)
"""
import json
import pathlib
import re
import subprocess
import sys
import textwrap

TABLES = {"settings": "name", "variables": "environment"}  # the latter: those of `msdu run`
WIDTH = 100


def cell(text):
    return str(text).replace("|", "\\|").replace("<", "&lt;")


def table(settings, key):
    yield f"| {key[:-1]} | default | range | what it is |\n| --- | --- | --- | --- |\n"
    for setting in settings:
        if setting["environment"].startswith("MSDU_ATTACH") != (key == "variables"):
            continue
        columns = [f"`{setting[TABLES[key]]}`", *(setting[of] for of in ("default", "range", "help"))]
        yield "| " + " | ".join(cell(column) for column in columns) + " |\n"


def document(command, text):
    output = subprocess.run([command, "info", "--json"], check=True, capture_output=True).stdout
    settings = json.loads(output)["settings"]
    found = [key for key in TABLES if f"<!-- end of {key} -->" in text]
    for key in found:
        begin = f"<!-- {key}: made by doc/settings_table.py from `msdu info --json` -->\n"
        end = f"<!-- end of {key} -->\n"
        before, rest = text.split(begin)
        after = rest.split(end)[1]
        text = before + begin + "".join(table(settings, key)) + end + after
    return text if found else sys.exit("the document has no marker of a table")


def field(row):
    """Declaration and comment: choices, but no ranges of numbers; a default that is not zero, and
    not the first choice."""
    kind, name, rest = re.fullmatch(r"\w+\((.*?), (\w+),(.*)\)", row, re.S).groups()
    texts = re.findall(r'"([^"]*)"', re.sub(r'"\s+"', "", rest))
    if row.startswith("SETTING"):
        preset, texts = texts[0], texts[1:]
        is_plain = preset in ("", "0", "auto") or texts[1:] and texts[1].split(",")[0] == preset
        texts += [] if is_plain else [f"default {preset}"]
    return f"{kind} {name};".replace("* ", "*"), "; ".join(texts)


def fields(block):
    """Lines of a block of rows, comments in one column as clang-format has them."""
    pairs = [field(row) for row in re.findall(r"(?ms)^(?:SETTING|FIELD)\w*\(.*?\)$(?!\n )", block)]
    column = 5 + max(len(declaration) for declaration, _ in pairs)
    for declaration, comment in pairs:
        first = f"    {declaration}".ljust(column) + "/* "
        style = textwrap.TextWrapper(WIDTH, first, " " * len(first), break_on_hyphens=False)
        yield from (line.replace("\0", " ") for line in style.wrap(comment + "\0*/"))


def header(path, text):
    begin, end = "typedef struct msdu_config {\n", "} msdu_config;\n"
    source = pathlib.Path(path).read_text(encoding="utf-8").split("#endif\n")[2]
    lines = ["    size_t size; /* sizeof(msdu_config) of the caller; use MSDU_CONFIG_INIT */"]
    for block in source.split("\n\n/* `msdu run` */")[0].strip().split("\n\n"):
        heading = re.match(r"/\*.*\*/", block)
        lines += ["", *(["    " + heading.group()] if heading else []), *fields(block)]
    before, rest = text.split(begin)
    return before + begin + "\n".join(lines) + "\n" + end + rest.split(end)[1]


def main():
    source, path = sys.argv[1], pathlib.Path(sys.argv[2])
    text = path.read_text(encoding="utf-8")
    made = (header if source.endswith(".inc") else document)(source, text)
    if "--check" not in sys.argv:
        path.write_text(made, encoding="utf-8")
    elif made != text:
        sys.exit(f"{path} is out of date: run `make settings`")


main()
