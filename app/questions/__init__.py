"""Questions: requests that name what changes, and which plan answers each now.

The models and clusters named are in `app.fleet`.
"""
