# SPDX-License-Identifier: Apache-2.0
TABLE = "table.md"
def write(records, out):
    (out / TABLE).write_text("")
def take_steps(a, b): pass
