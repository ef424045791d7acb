"""What a machine may have beside the checkout: a real corpus and a real model. Tests that need them skip without them."""

from __future__ import annotations

from pathlib import Path

SHARED = Path(__file__).resolve().parents[3] / "shared"
