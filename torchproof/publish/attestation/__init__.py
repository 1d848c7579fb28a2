"""What is signed and said about an image, how it is attached to it, and how it is verified."""
