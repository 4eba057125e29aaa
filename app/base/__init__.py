"""Documents from outside as plain values and as records, and files that commands write.

What a request means is in `app.requests`.
"""
