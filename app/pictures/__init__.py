"""Plans as pictures and files to take away: the timeline of a pipeline as a trace, drawings in SVG, one page of HTML."""
