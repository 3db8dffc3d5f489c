"""The parts of a forward pass: products, attention, the layers of common families, the layout of a prefill."""
