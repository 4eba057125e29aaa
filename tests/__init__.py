"""All tests. Importing this comes first, before anything loads NumPy."""

import os

# As `meshwright` does for itself: beside other workers, threads of the linear algebra wait for one another, of small matrices
# a hundred times longer than they work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
