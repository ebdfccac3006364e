"""Several engines behind one address: a front, replicas that Ray Serve runs, the way between."""
