"""Search choices that are declared whole, a file each: type, values, default, who has them, words.

The records in which candidates and plans carry them are in `solver.problem.carried_choices`.
"""
