"""Tools compute nothing in the event loop."""

from __future__ import annotations

from tests.stalls import no_stalls

__all__ = ["no_stalls"]
