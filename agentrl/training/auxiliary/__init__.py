"""Models that train beside the policy: critics and reward models."""
