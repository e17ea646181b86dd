# SPDX-License-Identifier: Apache-2.0
"""Pipelines of unequal machines over slow links: torch's schedules beside planned ones."""
