"""Families whose layers differ in more than a window or experts: in heads, widths, mixers, or in what they attend to."""
