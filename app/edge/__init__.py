"""The parts that all endpoints share: bodies, pages of lists, problem documents and middleware.

The endpoints are in `app.web`.
"""
