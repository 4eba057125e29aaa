"""The third floor: who asks, and who keeps the answer.

Every side effect is here; what a choice costs and which is best is below.
"""
