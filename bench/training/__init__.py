# SPDX-License-Identifier: Apache-2.0
"""The training comparison: data, models, methods, one run, and the table of runs."""
