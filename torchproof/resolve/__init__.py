"""Which exact wheels a cell needs: what the indexes offer now, and the lock made from it."""
