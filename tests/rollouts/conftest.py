"""Small trainings draw no curve."""

from tests.lean import no_curves

__all__ = ["no_curves"]
