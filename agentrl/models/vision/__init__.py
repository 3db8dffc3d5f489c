"""Vision-language models: image processors, vision towers, and position ids of images."""
