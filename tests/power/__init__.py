"""How much the tests notice: mutants of the package, each against the tests that reach its line."""
