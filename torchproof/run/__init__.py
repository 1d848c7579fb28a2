"""Many cells along their whole road: each cell's run and verdict, and the tables of a run."""
