"""Models trained alongside the policy: critics and reward models."""
