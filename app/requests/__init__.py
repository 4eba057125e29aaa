"""The request document: read, checked, resolved; words for clusters and models; the documents and digests of plans."""
