"""Small trainings draw no curve, and nothing computes in the event loop."""

from tests.lean import no_curves
from tests.stalls import no_stalls

__all__ = ["no_curves", "no_stalls"]
