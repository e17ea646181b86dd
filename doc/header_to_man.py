#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the manual pages msdu(3) and msdu_stages(3) from the comments of include/msdu/msdu.h, with
config.h, which it includes, and of stages.h, so that they cannot drift.

usage: header_to_man.py HEADER PAGE
Needs nothing but Python. The date is SOURCE_DATE_EPOCH, else today.
"""

import datetime
import os
import re
import sys
import textwrap

COMMENT = re.compile(r"/\*(.*?)\*/", re.S)
# A comment and what it speaks of: the declaration that follows without a blank line between.
ITEM = re.compile(
    r"^(/\*(?:(?!\*/).)*\*/\n)?(#define \w+ [^\n]*|typedef [^\n]*|MSDU_API [^\n]*)", re.S | re.M
)


def escape(text):
    """Text that roff prints as it stands."""
    text = text.replace("\\", "\\e").replace("^", "\\(ha").replace("~", "\\(ti")
    text = text.replace("`", "\\(ga").replace("'", "\\(aq").replace("-", "\\-")
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in text.split("\n"))


def prose(text):
    """Running text, in source lines as roff tools like them."""
    lines = textwrap.wrap(text, 76, break_long_words=False, break_on_hyphens=False)
    return escape("\n".join(lines))


def comment_lines(comment):
    """Lines of a block comment without its stars."""
    if not comment:
        return []
    inner = COMMENT.match(comment).group(1)
    lines = [re.sub(r"^\s*\* ?", "", line).rstrip() for line in inner.split("\n")]
    while lines and not lines[0].strip():
        lines.pop(0)
    while lines and not lines[-1].strip():
        lines.pop()
    return [lines[0].lstrip()] + lines[1:] if lines else []


def roff_comment(lines, arguments=()):
    """Paragraphs, lists, "name  meaning" lines and indented examples of a comment."""
    out = []
    is_code = False
    is_open = False  # inside a paragraph or list entry, whose lines are joined
    for line in lines:
        term = re.match(r"^(\w+) +(\S.*)$", line)
        term = term if term and (term.group(1) in arguments or "  " in term.group(0)) else None
        if line.startswith("    ") and not is_open or is_code and line.startswith("    "):
            out += [] if is_code else [".PP", ".nf"]
            is_code = True
            out.append(escape(line))
            continue
        if is_code:
            out.append(".fi")
            is_code = False
        if not line.strip():
            is_open = False
        elif line.startswith((" - ", "- ")):
            out += [".IP \\(bu 2", prose(line.strip()[2:])]
            is_open = True
        elif term:
            out += [".TP", ".I " + escape(term.group(1)), prose(term.group(2))]
            is_open = True
        else:
            is_new = not is_open or line.startswith(("Returns ", "Thread: ", "Errors: "))
            out += [".PP"] if is_new else []
            out.append(prose(line.strip()))
            is_open = True
    return out + ([".fi"] if is_code else [])


def members(body, end):
    """(declaration, comment) of a struct's or enum's body; the declaration is None for a heading."""
    found = []
    token = re.compile(r"/\*.*?\*/|[^/" + end + r"]+" + end + "?", re.S)
    for match in token.finditer(body):
        text = match.group(0)
        if text.startswith("/*"):
            is_trailing = "\n" not in body[: match.start()].rsplit(end, 1)[-1] and found
            if is_trailing and found[-1][1] is None:
                found[-1] = (found[-1][0], " ".join(comment_lines(text)))
            else:
                found.append((None, " ".join(comment_lines(text))))
        elif text.strip():
            found.append((" ".join(text.split()).rstrip(end), None))
    return [(decl, " ".join((text or "").split())) for decl, text in found]


def roff_members(body, end):
    out = []
    for decl, text in members(body, end):
        if decl is None:
            out += [".PP", prose(text[:1].upper() + text[1:] + ":")]
        else:
            out += [".TP", ".B " + '"' + escape(decl.replace("* ", "*")) + '"', prose(text) or "\\&"]
    return out


def statement_at(source, start):
    """A declaration from start to the semicolon that ends it."""
    depth = 0
    for at in range(start, len(source)):
        depth += {"{": 1, "}": -1}.get(source[at], 0)
        if source[at] == ";" and depth == 0:
            return source[start : at + 1]
    raise SystemExit("no end of declaration: " + source[start : start + 60])


def roff_function(comment, statement):
    text = re.sub(r"\b(MSDU_API|MSDU_MUST_CHECK)\s+", "", statement)
    text = " ".join(text.split())
    name = re.search(r"(\w+)\(", text).group(1)
    head, arguments = text.split("(", 1)
    arguments = arguments[: arguments.rindex(")")].split(", ")
    lines = [head + "(" + arguments[0]] + ["        " + argument for argument in arguments[1:]]
    code = ",\n".join(lines) + ");"
    names = [re.search(r"(\w+)$", argument).group(1) for argument in arguments]
    out = [".SS " + name + "()", ".nf", escape(code), ".fi"]
    return out + roff_comment(comment_lines(comment), names)


def roff_type(comment, statement):
    match = re.match(r"typedef (struct|enum) (\w+) \{(.*)\} \w+;", statement, re.S)
    if match is None:
        code = " ".join(statement.split())
        name = re.search(r"(\w+)\)\(|(\w+);", code)
        title = name.group(1) or name.group(2)
        return [".SS " + title, ".nf", escape(code), ".fi"] + roff_comment(comment_lines(comment))
    kind, name, body = match.groups()
    end = ";" if kind == "struct" else ","
    out = [".SS " + kind + " " + name] + roff_comment(comment_lines(comment))
    return out + roff_members(body, end)


def roff_statuses(source):
    out = [".SH STATUS"]
    for name, value, text in re.findall(r'X\((\w+), (-?\d+), "([^"]*)"\)', source):
        out += [".TP", f'.BR MSDU_{name} " ({escape(value)})"', escape(text)]
    return out


def roff_define(comment, line):
    return [".TP", ".B " + line.split()[1]] + [
        prose(text) for text in comment_lines(comment) if text.strip()
    ]


INCLUDED = re.compile(r"(?m)^#include <msdu/(config\.h)>$")


def page(source, name, version):
    """The page of header `name`; what it says of itself stands behind its name and a dash."""
    head = source[source.index(f"/*\n * {name} - ") :]
    head = head[: head.index("*/") + 2]
    functions, types, defines = [], [], []
    for comment, line in ITEM.findall(source.replace(head, "")):
        comment = comment.strip()
        statement = None
        if not line.startswith("#define"):
            statement = statement_at(source, source.index(line))
        if line.startswith("MSDU_API"):
            functions += roff_function(comment, statement)
        elif line.startswith("typedef"):
            is_plain = comment or statement.startswith("typedef enum")
            is_status = "MSDU_STATUS_ENUM" in statement  # has a section of its own
            types += roff_type(comment, statement) if is_plain and not is_status else []
        elif comment and "_MAP(" not in line:
            defines += roff_define(comment, line)
    stamp = os.environ.get("SOURCE_DATE_EPOCH")
    zone = datetime.timezone.utc
    day = datetime.datetime.fromtimestamp(int(stamp), zone) if stamp else datetime.datetime.now(zone)
    title, what = TITLES[name]
    out = [f'.\\" Made from {name} by header_to_man.py; do not edit.']
    out += [f'.TH {title.upper()} 3 {day:%Y-%m-%d} "libmsdu {version}" "Library Functions Manual"']
    out += [".SH NAME", f"{title} \\- {escape(what)}"]
    out += [".SH SYNOPSIS", ".nf", f".B #include <msdu/{name}>", ".PP"]
    out += ["cc ... $(pkg\\-config \\-\\-cflags \\-\\-libs msdu)", ".fi", ".SH DESCRIPTION"]
    out += roff_comment(comment_lines(head)[2:])
    out += [".SH FUNCTIONS"] + functions + [".SH TYPES"] + types
    out += ([".SH CONSTANTS"] + defines if defines else [])
    out += roff_statuses(source) if "MSDU_STATUS_MAP" in source else []
    other = "msdu_stages" if title == "msdu" else "msdu"
    also = [".BR msdu (1),", f".BR {escape(other)} (3)"]
    text = "\n".join([*out, ".SH SEE ALSO", *also, ""])
    return re.sub(r"(?m)^(\.S[HS] .*\n)\.PP\n", r"\1", text)  # a section begins a paragraph itself


TITLES = {
    "msdu.h": ("msdu", "communication-reducing data-parallel training"),
    "stages.h": ("msdu_stages", "cuts, placement and order of pipelines"),
}


def beside(header, name):
    """Text of a header that the first one includes."""
    with open(os.path.join(os.path.dirname(header), name), encoding="utf-8") as file:
        return file.read()


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        source = INCLUDED.sub(lambda found: beside(sys.argv[1], found.group(1)), file.read())
    version = ".".join(
        re.findall(r"#define MSDU_VERSION_\w+ (\d+)", beside(sys.argv[1], "msdu.h")))
    text = page(source, os.path.basename(sys.argv[1]), version)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(text)


main()
