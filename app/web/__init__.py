"""The REST service: one file of endpoints a resource.

What all of them share is in `app.edge`, what they do in the resource's folder.
"""
