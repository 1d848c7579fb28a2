"""Where wheels come from: index pages, downloads, and the store of verified wheel files."""
