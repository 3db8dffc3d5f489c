"""Parts of messages: contents, images, and the token ids of images."""
