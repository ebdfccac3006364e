"""A model's weights in files, under the names that the network asks for."""
