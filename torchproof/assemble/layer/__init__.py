"""The bytes of one layer: wheels read, laid out, slimmed and written as a tar.gz stream."""
