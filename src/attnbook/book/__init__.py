"""What only the book needs: pictures, the ledger of claims, counterexamples, formats of numbers. No room imports it."""
