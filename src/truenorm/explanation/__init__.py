"""The computation step by step, and how it is shown: `steps` computes, `text` and `html` show."""
