"""From groups that were played to the samples that train: selection, credit, refinement."""
