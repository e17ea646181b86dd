# SPDX-License-Identifier: Apache-2.0
"""Puts the tables of settings, as `msdu info --json` prints them, into a document.

settings_table.py MSDU FILE          rewrites the part between the two markers of each table
settings_table.py MSDU FILE --check  only says whether it would change (exit 1)
"""
import json
import pathlib
import subprocess
import sys

TABLES = {"settings": "setting", "variables": "variable"}  # key of the JSON: the first column


def cell(text):
    return str(text).replace("|", "\\|").replace("<", "&lt;")


def table(settings, column):
    yield f"| {column} | default | range | what it is |\n| --- | --- | --- | --- |\n"
    for setting in settings:
        columns = (f"`{setting['name']}`", setting["default"], setting["range"], setting["help"])
        yield "| " + " | ".join(cell(column) for column in columns) + " |\n"


def main():
    command, path = sys.argv[1], pathlib.Path(sys.argv[2])
    output = subprocess.run([command, "info", "--json"], check=True, capture_output=True).stdout
    text = path.read_text(encoding="utf-8")
    made, found = text, 0
    for key, column in TABLES.items():
        begin = f"<!-- {key}: made by doc/settings_table.py from `msdu info --json` -->\n"
        end = f"<!-- end of {key} -->\n"
        if begin in made:
            before, rest = made.split(begin)
            after = rest.split(end)[1]
            made = before + begin + "".join(table(json.loads(output)[key], column)) + end + after
            found += 1
    if found == 0:
        sys.exit(f"{path} has no marker of a table")
    if "--check" not in sys.argv:
        path.write_text(made, encoding="utf-8")
    elif made != text:
        sys.exit(f"{path}: a table of settings is out of date: run {sys.argv[0]}")


main()
