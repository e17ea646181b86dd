# SPDX-License-Identifier: Apache-2.0
"""Other trainers: ``huggingface`` (transformers' Trainer) and ``lightning``."""
