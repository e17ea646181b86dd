# SPDX-License-Identifier: Apache-2.0
"""Puts the table of settings, as `msdu info --json` prints it, into doc/settings.md.

settings_table.py MSDU FILE          rewrites the part between the two markers
settings_table.py MSDU FILE --check  only says whether it would change (exit 1)
"""
import json
import pathlib
import subprocess
import sys

BEGIN = "<!-- settings: made by doc/settings_table.py from `msdu info --json` -->\n"
END = "<!-- end of settings -->\n"


def cell(text):
    return str(text).replace("|", "\\|").replace("<", "&lt;")


def table(settings):
    yield "| setting | default | range | what it is |\n| --- | --- | --- | --- |\n"
    for setting in settings:
        columns = (f"`{setting['name']}`", setting["default"], setting["range"], setting["help"])
        yield "| " + " | ".join(cell(column) for column in columns) + " |\n"


def main():
    command, path = sys.argv[1], pathlib.Path(sys.argv[2])
    output = subprocess.run([command, "info", "--json"], check=True, capture_output=True).stdout
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    made = before + BEGIN + "".join(table(json.loads(output)["settings"])) + END + after
    if "--check" not in sys.argv:
        path.write_text(made, encoding="utf-8")
    elif made != text:
        sys.exit(f"{path}: the table of settings is out of date: run {sys.argv[0]}")


main()
