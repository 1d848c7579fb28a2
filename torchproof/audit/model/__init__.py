"""What facts mean at run time: the loader's search, processes, distributions, users."""
