"""What an image is: its layers, configuration and Dockerfile, and how a stored image is read."""
