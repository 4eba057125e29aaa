"""Facts of launchers and serving engines: the plans that each can express, and its kernels, a file each; `table` has all."""
