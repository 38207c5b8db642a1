"""How an explanation looks: `cells` formats numbers once, `text` and `html` show them. None of them computes."""
