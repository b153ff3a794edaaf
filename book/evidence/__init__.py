"""What only the book needs, and no wheel: the ledger of claims, counterexamples, formats of numbers, incidents."""
