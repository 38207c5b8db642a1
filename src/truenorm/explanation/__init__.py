"""The computation step by step: `steps` computes the steps, `text` and `html` show them."""
