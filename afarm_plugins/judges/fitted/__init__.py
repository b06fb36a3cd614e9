"""Judges fitted to labels that exist, people's or a judge's: `afarm judge fit`, and `fitted:DIR`."""
