"""What a normalization is and what it computes, in NumPy. Read in this order: norm, moments, reference."""
