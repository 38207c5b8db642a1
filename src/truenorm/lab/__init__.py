"""The lab: small networks with hand-written backpropagation, in NumPy."""
