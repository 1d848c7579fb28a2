"""Texts beside an image (Dockerfiles, scripts, manifests), parsed into values. Pure."""
