"""The commands, one module per group; each is loaded when it is called."""
