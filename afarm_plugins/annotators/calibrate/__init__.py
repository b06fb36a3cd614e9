"""The study `calibrate`: a pool fitted to labels of people. See docs/studies/calibrate.md."""
