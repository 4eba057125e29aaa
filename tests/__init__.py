"""All tests. Importing this comes first, before anything loads NumPy."""

import os

# Beside other workers, threads of the linear algebra wait for one another, of small matrices a hundred times longer than they
# work. `meshwright` says the first for itself; PyTorch reads the second.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
