"""Studies: grids of runs, and what is read off them. Their interface, records and estimates."""
