"""Predicted beside measured on one GPU: kernels, training steps and a serving loop, in a few minutes, with PyTorch alone."""

from __future__ import annotations

from pathlib import Path

import meshwright

ROOT = Path(__file__).resolve().parents[2]

if str(ROOT) not in meshwright.__path__:
    # A clone that is not installed: the rooms lie beside the package.
    meshwright.__path__.append(str(ROOT))
