"""Models that see: their processors, their towers, and the positions of what they see."""
