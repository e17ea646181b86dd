# SPDX-License-Identifier: Apache-2.0
"""A hash of everything that models hold, for the scripts here; knows nothing of msdu."""

import hashlib


def digest(*models):
    """Parameters and buffers, to the bit."""
    total = hashlib.blake2s()
    for model in models:
        for name, value in model.state_dict().items():
            total.update(name.encode())
            total.update(value.detach().contiguous().numpy().tobytes())
    return total.hexdigest()
