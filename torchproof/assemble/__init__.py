"""Images straight from wheels, without a daemon; start reading at `build_image.py`."""
