"""The tests, in the layout of the package; a package itself so that its helpers can be imported."""
