"""Static checks: the files, configuration and recipes of an image → findings. Nothing is run."""
