"""Studies: grids of runs over shared artifacts, and the tables and plots that are read off them."""
