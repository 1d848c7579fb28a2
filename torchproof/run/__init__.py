"""The whole road for many cells: each cell's run, its verdict, and the tables made on the way."""
