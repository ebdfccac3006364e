"""From logits to the next token: parameters, candidates, penalties, stop conditions."""
