"""Several rooms together, over real databases, processes and sockets."""
