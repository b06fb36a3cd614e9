"""Two systems compared from their files."""
