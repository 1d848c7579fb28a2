"""What builds images and runs commands in them: Docker, Podman, virtual environments."""
