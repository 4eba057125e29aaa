"""The tables, one resource a file. Queries of them are in the folder of their resource."""
